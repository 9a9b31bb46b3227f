import { useLayoutEffect, useState } from "react";
import { useLocation, useNavigate } from "react-router-dom";
import { App } from "src/App";
import { ENTRY_NAMES, type HostProps } from "src/host";
import * as shared from "src/shared";

Reflect.set(globalThis, "AirflowHops", shared);

/**
 * What the host shows once it has loaded the bundle: nothing, for a moment, then the app.
 *
 * The host looks for an entry's component under the entry's name. Where it had to load that first, it wraps it in
 * `Suspense`; when it renders the next time, which is when the address changes, it finds the component and leaves the
 * wrapping out, and React makes all that is inside anew: an input loses the focus, a drag its grip. So the host is made
 * to render again by the address that is there already, before there is anything to lose.
 */
function Arrival(host: HostProps) {
  const location = useLocation();
  const [first] = useState(location.key);
  const navigate = useNavigate();
  // biome-ignore lint/correctness/useExhaustiveDependencies: once
  useLayoutEffect(() => {
    for (const name of ENTRY_NAMES) {
      Reflect.set(globalThis, name, App);
    }
    void navigate(location, { replace: true, state: location.state, preventScrollReset: true });
  }, []);
  // Still here after that: this host keeps what it has loaded.
  return location.key === first ? null : <App {...host} />;
}

export default Arrival;
