/** Parts that several views use. Text is always set as text, never as markup. */

import { type ComponentChildren, createContext } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import { messageOf } from "./api";

export function Card({ title, aside, children, className = "" }: { title?: string; aside?: ComponentChildren; children: ComponentChildren; className?: string }) {
  return (
    <section class={`card ${className}`} aria-label={title}>
      {title && <div class="card-head"><h2>{title}</h2>{aside}</div>}
      {children}
    </section>
  );
}

export function Notice({ kind = "info", children }: { kind?: "info" | "error" | "good"; children: ComponentChildren }) {
  return <p class={`notice ${kind}`} role={kind === "error" ? "alert" : "status"}>{children}</p>;
}

export function Segmented<T extends string>({ label, options, value, onChange }: {
  label: string; options: readonly (readonly [T, string])[]; value: T; onChange: (value: T) => void;
}) {
  return (
    <fieldset class="segmented">
      <legend class="hidden">{label}</legend>
      {options.map(([option, text]) => (
        <label key={option} class={option === value ? "on" : ""}>
          <input type="radio" name={label} checked={option === value} onChange={() => onChange(option)} />{text}
        </label>
      ))}
    </fieldset>
  );
}

export function Spinner({ text = "Loading" }: { text?: string }) {
  return <p class="quiet loading" role="status">{text} …</p>;
}

export interface Loaded<T> { value: T | null; error: unknown; loading: boolean }

/** Loads on mount and when `deps` change. A later load supersedes an earlier one. */
export function useLoad<T>(load: () => Promise<T>, deps: unknown[]): Loaded<T> {
  const [state, setState] = useState<Loaded<T>>({ value: null, error: null, loading: true });
  useEffect(() => {
    let current = true;
    setState((before) => ({ ...before, error: null, loading: true }));
    load().then(
      (value) => current && setState({ value, error: null, loading: false }),
      (error) => current && setState({ value: null, error, loading: false }),
    );
    return () => { current = false; };
  }, deps);
  return state;
}

export function Failure({ error }: { error: unknown }) {
  return error ? <Notice kind="error">{messageOf(error)}</Notice> : null;
}

export interface Confirmation { title: string; body: ComponentChildren; action: string; danger?: boolean }
type Confirm = (confirmation: Confirmation) => Promise<boolean>;
const ConfirmContext = createContext<Confirm>(async () => false);
/** Asks before an action that cannot be taken back without another one. */
export const useConfirm = (): Confirm => useContext(ConfirmContext);

export function ConfirmProvider({ children }: { children: ComponentChildren }) {
  const [open, setOpen] = useState<(Confirmation & { done: (answer: boolean) => void }) | null>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => { if (open) dialog.current?.showModal(); }, [open]);
  const confirm: Confirm = (confirmation) => new Promise((done) => setOpen({ ...confirmation, done }));
  const close = (answer: boolean) => { dialog.current?.close(); open?.done(answer); setOpen(null); };
  return (
    <ConfirmContext.Provider value={confirm}>
      {children}
      {open && (
        <dialog ref={dialog} aria-labelledby="confirm-title" onCancel={(event) => { event.preventDefault(); close(false); }}>
          <h2 id="confirm-title">{open.title}</h2>
          <div class="dialog-body">{open.body}</div>
          <div class="actions end">
            <button type="button" onClick={() => close(false)}>Back</button>
            <button type="button" class={open.danger ? "primary danger" : "primary"} onClick={() => close(true)}>{open.action}</button>
          </div>
        </dialog>
      )}
    </ConfirmContext.Provider>
  );
}

/** A field for a secret: kept in memory, never stored or offered by the browser. */
export function SecretField({ label, hint, action, onUse }: { label: string; hint: string; action: string; onUse: (secret: string) => Promise<void> | void }) {
  const [text, setText] = useState("");
  const [error, setError] = useState<unknown>(null);
  const id = `secret-${label.replaceAll(" ", "-").toLowerCase()}`;
  const submit = async (event: Event) => {
    event.preventDefault();
    setError(null);
    try {
      await onUse(text);
      setText("");
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <form onSubmit={submit} class="secret">
      <label for={id}>{label}</label>
      <div class="row">
        <input id={id} type="password" autocomplete="off" spellcheck={false} value={text} aria-describedby={`${id}-hint`}
          onInput={(event) => setText(event.currentTarget.value)} />
        <button type="submit" class="primary" disabled={!text.trim()}>{action}</button>
      </div>
      <p id={`${id}-hint`} class="quiet small">{hint}</p>
      <Failure error={error} />
    </form>
  );
}
