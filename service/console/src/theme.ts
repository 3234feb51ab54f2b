/** Light, dark, or as the system says. The choice is the only thing that the console stores in the browser. */

export type Theme = "system" | "light" | "dark";
const NAME = "sgformer-theme";
const THEMES: Theme[] = ["system", "light", "dark"];

export function theme(): Theme {
  const stored = localStorage.getItem(NAME) as Theme | null;
  return stored && THEMES.includes(stored) ? stored : "system";
}

export function applyTheme(chosen: Theme = theme()): void {
  localStorage.setItem(NAME, chosen);
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

export function nextTheme(): Theme {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]!;
  applyTheme(next);
  return next;
}
