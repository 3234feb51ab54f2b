/** A field for the id of a node, which suggests ids that contain what is typed. */

import { useId, useState } from "preact/hooks";
import { loadMap } from "./map_data";
import { useService } from "./session";

const SUGGESTED = 12;

export function NodeField({ id, value, onChange, short = false }: { id?: string; value: string; onChange: (value: string) => void; short?: boolean }) {
  const { snapshot } = useService();
  const [ids, setIds] = useState<string[]>([]);
  const list = useId();
  const read = () => { if (!ids.length) loadMap(snapshot).then((map) => setIds(map.ids.map(String)), () => undefined); }; // without a map, there are no suggestions
  return (
    <>
      <input id={id} class={short ? "short" : undefined} list={list} value={value} onFocus={read} onInput={(event) => onChange(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
      <datalist id={list}>{search(ids, value.trim()).map((found) => <option key={found} value={found} />)}</datalist>
    </>
  );
}

/** Ids that start with the text, then those that contain it. */
function search(ids: string[], text: string): string[] {
  if (!text) return [];
  const wanted = text.toLowerCase(), first: string[] = [], others: string[] = [];
  for (const id of ids) {
    const place = id.toLowerCase().indexOf(wanted);
    if (place === 0) first.push(id);
    else if (place > 0 && others.length < SUGGESTED) others.push(id);
    if (first.length === SUGGESTED) break;
  }
  return [...first, ...others].slice(0, SUGGESTED);
}
