import type { ExtensionProps } from "airflow-hops";
import { ExplanationsTab, Opened } from "src/extensions/explain/ExplanationsTab";

/** On a task's tab, the explanation that it made; on a model's, all of them. */
export default function Explanations({ dagId = "", model = "", artifact }: ExtensionProps) {
  if (artifact === undefined) {
    return <ExplanationsTab dagId={dagId} model={model} />;
  }
  return artifact.state === "present" && <Opened artifact={artifact} />;
}
