/** Retraining jobs: submit one, follow its events, cancel it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { type Job, events, get, post } from "../api";
import { number, percent, time } from "../format";
import { Lines, type Series } from "../plot";
import { useService } from "../session";
import { Card, Failure, Notice, useConfirm } from "../ui";

const isActive = (job: Job): boolean => job.state === "queued" || job.state === "running";

export function Jobs({ jobs, onJobs, onVersions }: { jobs: Job[]; onJobs: () => Promise<void>; onVersions: () => void }) {
  const active = jobs.find(isActive);
  const [opened, setOpened] = useState<string | null>(null);
  const shown = opened ?? active?.id ?? null;
  const ended = async () => { await onJobs(); onVersions(); };
  return (
    <div class="columns">
      <Retrain running={active !== undefined} onSubmitted={async (id) => { await onJobs(); setOpened(id); }} />
      {shown ? <Progress key={shown} id={shown} onStart={onJobs} onEnd={ended} /> : <Card title="Progress"><p class="empty">No job runs.</p></Card>}
      {jobs.length > 0 && <Card title="Jobs" className="wide"><History jobs={jobs} onOpen={setOpened} /></Card>}
    </div>
  );
}

function Retrain({ running, onSubmitted }: { running: boolean; onSubmitted: (id: string) => Promise<void> }) {
  const { drawable } = useService(), confirm = useConfirm();
  const [fields, setFields] = useState({ recipe: drawable ? "digits" : "", data: "", epochs: "", activate: "if_better", warm: true });
  const [error, setError] = useState<unknown>(null);
  const set = (changes: Partial<typeof fields>) => setFields({ ...fields, ...changes });
  const submit = async (event: Event) => {
    event.preventDefault();
    const { recipe, data, epochs, activate, warm } = fields;
    const body = {
      ...(recipe.trim() && { recipe: recipe.trim() }), ...(data.trim() && { data: data.trim() }), ...(epochs && { overrides: { epochs: Number(epochs) } }),
      warm_start: warm, activate,
    };
    const effect = activate === "never" ? "The new version does not go live." : activate === "always" ? "The new version goes live, better or not." : "The new version goes live if it is better on the same held-out nodes.";
    if (!(await confirm({ title: "Start a retraining?", body: <p>It trains in a process of its own beside the service. {effect}</p>, action: "Start" }))) return;
    setError(null);
    try {
      await onSubmitted((await post<{ job: string }>("/admin/retrain", body)).job);
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <Card title="Retrain">
      <form onSubmit={submit} class="stack">
        <div class="feature-grid two">
          <div><label for="recipe">Recipe</label><input id="recipe" value={fields.recipe} onInput={(event) => set({ recipe: event.currentTarget.value })} autocomplete="off" /></div>
          <div><label for="data">Data (file, or “live”)</label><input id="data" value={fields.data} onInput={(event) => set({ data: event.currentTarget.value })} autocomplete="off" placeholder="of the recipe" /></div>
          <div><label for="epochs">Epochs</label><input id="epochs" value={fields.epochs} onInput={(event) => set({ epochs: event.currentTarget.value.replace(/\D/g, "") })} placeholder="of the recipe" autocomplete="off" /></div>
          <div><label for="activate">Goes live</label>
            <select id="activate" value={fields.activate} onChange={(event) => set({ activate: event.currentTarget.value })}>
              <option value="if_better">if better</option><option value="always">always</option><option value="never">never</option>
            </select></div>
        </div>
        <label class="check"><input type="checkbox" checked={fields.warm} onChange={(event) => set({ warm: event.currentTarget.checked })} />Start from the live weights</label>
        <button type="submit" class="primary" disabled={running || !(fields.recipe.trim() || fields.data.trim())}>Retrain …</button>
        {running && <p class="quiet small">A job runs. A model has one job at a time.</p>}
        <Failure error={error} />
      </form>
    </Card>
  );
}

function Progress({ id, onStart, onEnd }: { id: string; onStart: () => Promise<void>; onEnd: () => Promise<void> }) {
  const confirm = useConfirm();
  const [job, setJob] = useState<Job | null>(null), [error, setError] = useState<unknown>(null);
  const scores = useRef<{ validation: Series; loss: Series }>({ validation: [], loss: [] });
  useEffect(() => {
    const control = new AbortController();
    let wasActive = false;
    const follow = async () => {
      const first = await get<Job>(`/admin/jobs/${id}`, control.signal);
      wasActive = isActive(first);
      setJob(first);
      for await (const { name, data } of events(`/admin/jobs/${id}/events`, control.signal)) {
        if (name === "epoch") {
          scores.current.validation.push(data.validation);
          scores.current.loss.push(data.loss);
          setJob((before) => before && { ...before, state: "running", epoch: data.number, epochs: data.epochs, validation: data.validation });
        } else if (name === "verdict") setJob((before) => before && { ...before, verdict: data });
        else if (name === "published") setJob((before) => before && { ...before, version: data.version });
        else if (name === "end") {
          setJob(await get<Job>(`/admin/jobs/${id}`, control.signal));
          if (wasActive) await onEnd();
        } else if (name === "started" && first.state === "queued") {
          setJob((before) => before && { ...before, state: "running" });
          await onStart();
        }
      }
    };
    follow().catch((failure) => { if (!control.signal.aborted) setError(failure); });
    return () => control.abort();
  }, [id]);

  const cancel = async () => {
    if (!(await confirm({ title: "Cancel this job?", body: <p>The training stops, and what it has computed is lost.</p>, action: "Cancel the job", danger: true }))) return;
    try {
      await post(`/admin/jobs/${id}/cancel`, undefined);
    } catch (failure) {
      setError(failure);
    }
  };
  if (!job) return <Card title="Progress"><Failure error={error} /></Card>;
  return (
    <Card title="Progress" aside={isActive(job) && <button type="button" class="tiny" onClick={cancel}>Cancel the job …</button>}>
      <Failure error={error} />
      <p class="row-center"><span class={`tag ${job.state}`} data-testid="job-state">{job.state}</span> <span class="mono quiet">{job.id}</span></p>
      {job.warning && <Notice>{job.warning}</Notice>}
      <EpochBar job={job} />
      {scores.current.validation.length > 1 && (
        <>
          <Lines series={[scores.current.validation]} slots={Math.max(scores.current.validation.length, 2)} least={1} label={`Validation score up to epoch ${job.epoch}`} />
          <p class="plot-scale"><span>validation score {job.validation === null ? "" : number(job.validation)}</span><span>loss {number(scores.current.loss.at(-1) ?? NaN)}</span></p>
        </>
      )}
      {job.error && <Notice kind="error">{job.error}</Notice>}
      {job.version !== null && <p class="spaced">Published version <strong>{job.version}</strong>{job.live ? ", which went live." : "."}</p>}
      {job.verdict && <p class="quiet small">{job.verdict.better ? "Better" : "Not better"}: {job.verdict.reason}</p>}
      {job.log_tail && <details><summary>Log</summary><pre class="log" tabIndex={0}>{job.log_tail}</pre></details>}
    </Card>
  );
}

function EpochBar({ job }: { job: Job }) {
  const share = job.epochs ? job.epoch / job.epochs : 0;
  return (
    <>
      <div class="progress" role="progressbar" aria-label="Progress" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(100 * share)}><i style={{ width: percent(share, 2).replace(" ", "") }} /></div>
      <p class="quiet small">{job.epochs ? `epoch ${job.epoch} of at most ${job.epochs}` : job.state === "queued" ? "waits for a training process" : job.state === "running" ? "reads the data" : "no epoch was trained"}</p>
    </>
  );
}

function History({ jobs, onOpen }: { jobs: Job[]; onOpen: (id: string) => void }) {
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="Jobs">
      <table>
        <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col" class="rare">Submitted</th><th scope="col" class="end rare">Epoch</th><th scope="col" class="end rare">Version</th><th scope="col" class="rare">Result</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
        <tbody>{jobs.map((job) => (
          <tr key={job.id}>
            <td class="mono">{job.id}</td><td><span class={`tag ${job.state}`}>{job.state}</span></td><td class="rare">{time(job.submitted_at)}</td>
            <td class="end rare">{isActive(job) ? "–" : job.epoch}</td><td class="end rare">{job.version ?? "–"}</td><td class="rare">{job.live ? "live" : job.error ?? job.verdict?.reason ?? ""}</td>
            <td class="end"><button type="button" class="tiny" onClick={() => onOpen(job.id)}>Show<span class="hidden"> job {job.id}</span></button></td>
          </tr>
        ))}</tbody>
      </table>
    </div>
  );
}

