/** The frame of the page: navigation, theme, the key, and the view that the address names. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Origin, get, setKey } from "./api";
import { shortHash } from "./format";
import { ServiceContext, loadService } from "./session";
import { type Theme, nextTheme, theme } from "./theme";
import { ConfirmProvider, Failure, Notice, SecretField, Spinner, useLoad } from "./ui";
import { AskView } from "./views/ask";
import { HealthView } from "./views/health";
import { MapView } from "./views/map";
import { ModelsView } from "./views/models";
import { NodeView } from "./views/node";

const VIEWS = [
  ["ask", "Ask", "M4 5h16v11H9l-5 4z"],
  ["map", "Map", "M6 7.5a1.5 1.5 0 1 0 0-.01M17 6a1.5 1.5 0 1 0 0-.01M12 13a1.5 1.5 0 1 0 0-.01M6 18.5a1.5 1.5 0 1 0 0-.01M18.5 17a1.5 1.5 0 1 0 0-.01"],
  ["node", "Node", "M12 12 6 6m6 6 6-5m-6 5-5 7m5-7 6 6M12 14.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z"],
  ["models", "Models", "m12 3 8 4.5-8 4.5-8-4.5zM4 12l8 4.5 8-4.5M4 16.5 12 21l8-4.5"],
  ["health", "Health", "M3 12h4l3-7 4 14 3-7h4"],
] as const;
const WATCH_SECONDS = 5;
const SYMBOLS: Record<Theme, string> = {
  system: "M4 5h16v11H4zM9 20h6M12 16v4", light: "M12 8a4 4 0 1 0 .01 0zM12 2v2m0 16v2M2 12h2m16 0h2M5 5l1.4 1.4m11.2 11.2L19 19M5 19l1.4-1.4M17.6 6.4 19 5", dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
};

export function Icon({ path }: { path: string }) {
  return <svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d={path} /></svg>;
}

/** As it is if it is no valid encoding: anyone can write an address. */
function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decode);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const follow = () => setRoute(read());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route[0] ? route : ["ask"];
}

export function App() {
  const route = useRoute();
  const [attempt, setAttempt] = useState(0);
  const [name, setName] = useState<Theme>(theme());
  const { value: service, error, loading } = useLoad(loadService, [attempt]);
  const main = useRef<HTMLElement>(null);
  const view = VIEWS.find(([key]) => key === route[0]) ?? VIEWS[0];
  const locked = error instanceof ApiError && (error.status === 401 || error.status === 403);

  useEffect(() => { // another version may go live, by a job or another user
    const watch = async () => {
      const ready = await get<Origin>("/health/ready").catch(() => null);
      if (ready && service && ready.snapshot !== service.snapshot) setAttempt((before) => before + 1);
    };
    const timer = setInterval(watch, WATCH_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [service?.snapshot]);
  useEffect(() => { document.title = `${view[1]} · SGFormer console`; }, [view]);

  return (
    <ConfirmProvider>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href="#/ask" aria-label="SGFormer console">
          <svg viewBox="0 0 32 32" aria-hidden="true"><path d="M16 16 8.5 9M16 16l8-6.5M16 16l-6 8M16 16l7 6.5" /><circle cx="16" cy="16" r="4.4" /><circle cx="8" cy="8.6" r="2.7" /><circle cx="24.4" cy="9.2" r="2.7" /><circle cx="9.6" cy="24.4" r="2.7" /><circle cx="23.6" cy="23" r="2.7" /></svg>
          <span>SGFormer</span>
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([key, text, path]) => (
            <a key={key} href={`#/${key}`} aria-current={key === view[0] ? "page" : undefined}><Icon path={path} /><span>{text}</span></a>
          ))}
        </nav>
        <div class="top-end">
          {service && <a class="chip" href="#/models" title={`Snapshot ${service.snapshot}`}>{service.model}<span class="quiet"> v{service.version} · {shortHash(service.snapshot)}</span></a>}
          <button type="button" class="plain" onClick={() => setName(nextTheme())} aria-label={`Theme: ${name}. Change it`} title={`Theme: ${name}`}><Icon path={SYMBOLS[name]} /></button>
          <a class="plain docs" href="/docs">API</a>
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <h1 class="hidden">{view[1]}</h1>
        {view[0] === "health" ? <HealthView /> : locked ? <Locked rejected={error.status === 403} onKey={() => setAttempt(attempt + 1)} /> : service ? (
          <ServiceContext.Provider value={service}>
            {view[0] === "ask" && <AskView />}
            {view[0] === "map" && <MapView />}
            {view[0] === "node" && <NodeView key={route.slice(1).join("/")} text={route.slice(1).join("/")} />}
            {view[0] === "models" && <ModelsView onChange={() => setAttempt(attempt + 1)} />}
          </ServiceContext.Provider>
        ) : loading ? <Spinner /> : error ? <Failure error={error} /> : <Notice>The service has no model yet. Health shows what it waits for.</Notice>}
      </main>
    </ConfirmProvider>
  );
}

function Locked({ rejected, onKey }: { rejected: boolean; onKey: () => void }) {
  return (
    <div class="narrow">
      <section class="card">
        <h2>This service needs a key</h2>
        <SecretField label="API key" action="Continue" onUse={(key) => { setKey("api", key); onKey(); }}
          hint="The key stays in the memory of this page. It is gone when you reload or close the page." />
        {rejected && <Notice kind="error">The service does not know this key.</Notice>}
      </section>
    </div>
  );
}
