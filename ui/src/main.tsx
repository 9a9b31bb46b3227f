import { App } from "src/App";
import { ENTRY_NAMES } from "src/host";

// Before it loads a bundle, the host looks for an entry's component under the entry's name: loaded once, this one
// serves all entries.
for (const name of ENTRY_NAMES) {
  Reflect.set(globalThis, name, App);
}

export default App;
