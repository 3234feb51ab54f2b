import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const SOURCES = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"];

/** Writes the hash of the sources beside the built files, so that a test can tell whether both belong together. */
function recordSources(): Plugin {
  return {
    name: "record-sources",
    generateBundle() {
      const files = [...SOURCES, ...readdirSync("src", { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join(entry.parentPath, entry.name))].sort();
      const hash = createHash("sha256");
      for (const file of files) hash.update(`${file}\n`).update(readFileSync(file)).update("\n");
      this.emitFile({ type: "asset", fileName: "sources.sha256", source: `${hash.digest("hex")}\n` });
    },
  };
}

export default defineConfig({
  base: "/console/",
  plugins: [recordSources()],
  build: {
    target: "es2022",
    assetsDir: "",
    assetsInlineLimit: 0, // the policy of the page allows no data: addresses
    modulePreload: false,
    sourcemap: false,
  },
});
