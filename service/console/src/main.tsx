import { render } from "preact";
import { App } from "./app";
import { applyTheme } from "./theme";
import "./style.css";

applyTheme();
const root = document.getElementById("app")!;
root.textContent = "";
render(<App />, root);
