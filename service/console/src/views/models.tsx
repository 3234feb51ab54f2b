/** Models and jobs: versions, their scores and differences; retraining, activation and roll-back with the admin token. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, type Job, type Manifest, type Models, type StoredVersion, call, get, hasKey, messageOf, post, setKey } from "../api";
import { count, number, shortHash, time } from "../format";
import { Card, Failure, Notice, SecretField, Spinner, useConfirm, useLoad } from "../ui";
import { Jobs } from "./jobs";

const MAIN_SCORES = ["test_accuracy", "test_macro_f1", "validation_accuracy", "test_roc_auc", "test_r2", "test_rmse", "test_mae"];

export function ModelsView({ onChange }: { onChange: () => void }) {
  const [round, setRound] = useState(0), [jobs, setJobs] = useState<Job[] | null>(null), [admin, setAdmin] = useState(hasKey("admin"));
  const { value: models, error, loading } = useLoad(() => get<Models>("/models"), [round]);
  const refresh = () => { setRound((before) => before + 1); onChange(); };

  const loadJobs = async () => { setJobs((await get<{ jobs: Job[] }>("/admin/jobs")).jobs); };
  useEffect(() => { if (admin) loadJobs().catch(() => setAdmin(false)); }, [admin]);

  if (!models) return loading ? <Spinner /> : <Failure error={error} />;
  return (
    <div class="sections">
      <State models={models} />
      <Versions models={models} admin={admin} onChange={refresh} />
      {admin && jobs ? <Jobs jobs={jobs} onJobs={loadJobs} onVersions={refresh} /> : (
        <Card title="Retrain, activate, roll back">
          <SecretField label="Admin token" action="Unlock" hint="The token of SGF_ADMIN_TOKEN. It stays in the memory of this page, and is gone when you reload or close it."
            onUse={async (token) => {
              setKey("admin", token);
              try {
                await loadJobs();
                setAdmin(true);
              } catch (failure) {
                setKey("admin", "");
                if (failure instanceof ApiError && failure.status === 404) throw new Error("This service takes no admin requests: SGF_ADMIN_TOKEN is not set.");
                throw failure;
              }
            }} />
        </Card>
      )}
    </div>
  );
}

function State({ models }: { models: Models }) {
  const { serving, failure, probation, problem, rolled_back: back } = models;
  return (
    <div class="stack">
      {serving && (
        <p class="lead">
          This worker serves version <strong>{serving.version}</strong> of <strong>{serving.model}</strong> with the engine {serving.engine}.
          {probation === serving.version && " The version is on probation: the service rolls back if it fails too often."}
        </p>
      )}
      {failure && <Notice kind="error">{failure.version === null ? "" : `Version ${failure.version} could not be loaded: `}{failure.error}</Notice>}
      {problem && <Notice kind="error">{problem}</Notice>}
      {back && <Notice>Rolled back from version {back.from ?? "?"} to {back.to} at {time(back.at)}{back.why ? `: ${back.why}` : "."}</Notice>}
    </div>
  );
}

function Versions({ models, admin, onChange }: { models: Models; admin: boolean; onChange: () => void }) {
  const confirm = useConfirm();
  const [error, setError] = useState<unknown>(null), [done, setDone] = useState(""), [compared, setCompared] = useState<number | null>(null);
  const versions = [...models.versions].sort((a, b) => b.version - a.version);
  const live = versions.find((version) => version.live);
  const names = MAIN_SCORES.filter((name) => versions.some(({ scores }) => typeof scores?.[name] === "number")).slice(0, 3);

  const act = async (title: string, body: string, action: string, path: string, request: unknown) => {
    if (!(await confirm({ title, body: <p>{body}</p>, action }))) return;
    setError(null);
    setDone("");
    try {
      const { live: now } = await post<{ live: number }>(path, request);
      setDone(`Version ${now} is live. Workers load it within a second.`);
      onChange();
      setTimeout(onChange, 1200); // when this worker has loaded it
    } catch (failure) {
      setError(failure);
    }
  };
  const rollBack = () => act("Roll back?", `The version that was live before version ${live?.version ?? "?"} goes live again. No request fails.`, "Roll back", "/admin/models/rollback", {});

  return (
    <Card title="Versions" aside={admin && <button type="button" class="tiny" onClick={rollBack}>Roll back …</button>}>
      <Failure error={error} />
      {done && <div class="above"><Notice kind="good">{done}</Notice></div>}
      <div class="scroll" tabIndex={0} role="region" aria-label="Versions">
        <table data-testid="versions">
          <thead><tr>
            <th scope="col">Version</th><th scope="col">Created</th><th scope="col" class="end rare">Nodes</th><th scope="col" class="end rare">Edges</th>
            {names.map((name, place) => <th key={name} scope="col" class={place ? "end rare" : "end"}>{name.replaceAll("_", " ")}</th>)}<th scope="col" class="rare">Snapshot</th><th scope="col"><span class="hidden">Actions</span></th>
          </tr></thead>
          <tbody>{versions.map((version) => (
            <Row key={version.version} version={version} compared={compared === version.version} names={names} admin={admin} onReport={setError}
              onCompare={live && !version.live && !version.damaged ? () => setCompared(compared === version.version ? null : version.version) : undefined}
              onActivate={() => act(`Activate version ${version.version}?`, "The service verifies it, replays its probes and switches to it between two requests. You can roll back.", "Activate", "/admin/models/activate", { version: version.version })} />
          ))}</tbody>
        </table>
      </div>
      {compared !== null && live && compared !== live.version && <Difference left={live.version} right={compared} />}
    </Card>
  );
}

function Row({ version, compared, names, admin, onCompare, onActivate, onReport }: {
  version: StoredVersion; compared: boolean; names: string[]; admin: boolean; onCompare: (() => void) | undefined; onActivate: () => void; onReport: (error: unknown) => void;
}) {
  const score = (name: string) => (typeof version.scores?.[name] === "number" ? number(version.scores[name] as number) : "–");
  return (
    <tr>
      <td><strong>{version.version}</strong> {version.live && <span class="tag live">live</span>}{version.damaged && <span class="tag failed" title={version.damaged}>damaged</span>}</td>
      <td>{time(version.created)}</td><td class="end rare">{version.nodes === undefined ? "–" : count(version.nodes)}</td><td class="end rare">{version.edges === undefined ? "–" : count(version.edges)}</td>
      {names.map((name, place) => <td key={name} class={place ? "end rare" : "end"}>{score(name)}</td>)}
      <td class="mono rare" title={version.snapshot}>{shortHash(version.snapshot)}</td>
      <td class="end"><div class="actions end-tight">
        {!version.damaged && <Report version={version.version} onError={onReport} />}
        {onCompare && <button type="button" class="tiny" aria-pressed={compared} onClick={onCompare}>Compare<span class="hidden"> version {version.version} with the live version</span></button>}
        {admin && !version.live && !version.damaged && <button type="button" class="tiny" onClick={onActivate}>Activate …<span class="hidden"> version {version.version}</span></button>}
      </div></td>
    </tr>
  );
}

/** A link; with a key a download, because a link cannot carry the key. */
function Report({ version, onError }: { version: number; onError: (error: unknown) => void }) {
  const path = `/models/${version}/report`, hidden = <span class="hidden"> of version {version}</span>;
  if (!hasKey("api") && !hasKey("write")) return <a class="button tiny" href={path} target="_blank" rel="noopener">Report{hidden}</a>;
  const download = async () => {
    try {
      const url = URL.createObjectURL(await (await call("GET", path)).blob());
      const link = Object.assign(document.createElement("a"), { href: url, download: `report-${version}.html` });
      link.click();
      URL.revokeObjectURL(url);
    } catch (failure) {
      onError(failure);
    }
  };
  return <button type="button" class="tiny" onClick={download}>Report{hidden}</button>;
}

function flatten(value: unknown, prefix = ""): Map<string, string> {
  const result = new Map<string, string>();
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [name, part] of Object.entries(value)) for (const [key, text] of flatten(part, prefix ? `${prefix}.${name}` : name)) result.set(key, text);
  } else result.set(prefix, typeof value === "number" ? number(value) : typeof value === "string" ? value : value === null ? "–" : JSON.stringify(value));
  return result;
}

function Difference({ left, right }: { left: number; right: number }) {
  const { value, error, loading } = useLoad(() => Promise.all([left, right].map((version) => get<Manifest>(`/models/${version}`))), [left, right]);
  if (error) return <Notice kind="error">{messageOf(error)}</Notice>;
  if (loading || !value) return <Spinner />;
  const [before, after] = value.map(({ scores, config, training, dataset, nodes, edges }) => flatten({ scores, config, training, dataset, nodes, edges })) as [Map<string, string>, Map<string, string>];
  const keys = [...new Set([...before.keys(), ...after.keys()])].filter((key) => before.get(key) !== after.get(key));
  return (
    <div class="difference">
      <h3>What differs between version {left} (live) and version {right}</h3>
      {keys.length === 0 ? <p class="quiet">Scores, settings and data are equal.</p> : (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Differences">
          <table>
            <thead><tr><th scope="col">Field</th><th scope="col">Version {left}</th><th scope="col">Version {right}</th></tr></thead>
            <tbody>{keys.map((key) => <tr key={key}><td class="mono">{key}</td><td>{before.get(key) ?? "–"}</td><td>{after.get(key) ?? "–"}</td></tr>)}</tbody>
          </table>
        </div>
      )}
    </div>
  );
}
