/** The stages of a run as rows, and what is worth saying of an artifact without opening it. */

import type { Schemas } from "src/api/client";
import { formatCount, formatNumber, plural } from "src/format";
import { metricLabel } from "src/pages/Models/words";
import { foundInWords } from "src/pages/Schema/words";
import { artifactPath, instanceOf, modelsPath, runsPath, type TaskRef } from "src/routes";

type StageRun = Schemas["TaskResult"];
export type ArtifactEntry = Schemas["ArtifactEntry"];

/** A stage with one of its artifacts; with none where it made none, or not yet. */
export interface StageRow {
  key: string;
  position: number;
  stage: StageRun;
  task: TaskRef;
  artifact: ArtifactEntry | null;
}

/** A row an artifact, and one for each stage without. */
export function rowsOf(dagId: string, { run_id, stages }: Schemas["RunStages"]): StageRow[] {
  return stages
    .flatMap((stage) => {
      const artifacts: (ArtifactEntry | null)[] = stage.artifacts.length > 0 ? stage.artifacts : [null];
      return artifacts.map((artifact) => ({
        key: `${stage.task_id}/${instanceOf(stage)}/${artifact?.kind ?? ""}`,
        stage,
        task: { dag_id: dagId, run_id, task_id: stage.task_id, map_index: stage.map_index, iteration: stage.iteration },
        artifact,
      }));
    })
    .map((row, position) => ({ ...row, position }));
}

/** Whether every row that was read is written or rejected. */
export function isConserved({ rows }: ArtifactEntry): boolean {
  return Object.values(rows).every(
    ({ rows_in, rows_out, rejected }) =>
      rows_in === rows_out + Object.values(rejected).reduce((total, count) => total + count, 0),
  );
}

const text = (value: unknown): string => (typeof value === "string" || typeof value === "number" ? String(value) : "");
const texts = (value: unknown): string[] => (Array.isArray(value) ? value.map(text).filter(Boolean) : []);
const day = (time: string) => time.slice(0, 10);

function listed(names: readonly string[], most = 3): string {
  return names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}

function evaluationWords({ metrics, properties }: ArtifactEntry): string {
  const gain = Object.entries(metrics).find(([name]) => name.endsWith("_gain"));
  const split = gain?.[0].replace(/_gain$/, "") ?? Object.keys(metrics)[0]?.split("_")[0];
  const figures = Object.entries(metrics).filter(
    ([name]) => split && name.startsWith(`${split}_`) && name !== gain?.[0],
  );
  // The gain is that of the metric by which the models are compared, which need not be the first.
  const difference = ([name, value]: [string, number | null]) =>
    Math.abs((value ?? 0) - (metrics[`champion_${name}`] ?? 0));
  const isCompared = (figure: [string, number | null]) =>
    Math.abs(difference(figure) - Math.abs(gain?.[1] ?? 0)) < 1e-9;
  const figure = figures.find((each) => gain && isCompared(each)) ?? figures[0];
  return [
    properties.blessed ? "blessed" : "not blessed",
    figure && `${metricLabel(figure[0])} ${formatNumber(figure[1])}`,
    gain && `${(gain[1] ?? 0) > 0 ? "+" : ""}${formatNumber(gain[1], 3)} to the champion`,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** What a validation found; one of an earlier version does not say how many features that concerns. */
export function anomaliesInWords(metrics: ArtifactEntry["metrics"]): string {
  const { anomalous_features: features, drifted_features: drifted, errors, warnings } = metrics;
  return features == null && (errors || warnings)
    ? [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(" · ")
    : foundInWords(features ?? 0, drifted);
}

/** The figures by which one knows an artifact, in a few words. */
export function headlineOf(artifact: ArtifactEntry): string {
  const { kind, metrics, properties, rows } = artifact;
  const window = texts(properties.window).map(day).join(" to ");
  switch (kind) {
    case "snapshot":
      return [window, `${texts(properties.tables).length} tables`].filter(Boolean).join(" · ");
    case "examples":
    case "transformed_examples":
      return texts(properties.splits)
        .map((split) => `${split} ${formatCount(rows[split]?.rows_out)}`)
        .join(" · ");
    case "statistics":
    case "schema":
      return `${formatCount(metrics.features)} features`;
    case "anomalies":
      return anomaliesInWords(metrics);
    case "model":
      return Object.entries(metrics)
        .filter(([name]) => name.startsWith("eval_") || name === "examples_per_second")
        .slice(0, 3)
        .map(([name, value]) => `${name.replaceAll("_", " ")} ${formatNumber(value)}`)
        .join(" · ");
    case "evaluation":
      return evaluationWords(artifact);
    case "infra_blessing":
      return properties.blessed ? "loads and serves" : "it fails to load or serve";
    case "deployment":
      return `${text(properties.model_name)} v${text(properties.version)} as ${text(properties.mode)}`;
    case "rollout":
      return `${text(properties.model_name)} v${text(properties.version)} ${text(properties.decision).replaceAll("_", " ")}`;
    case "skew":
      return [text(properties.verdict).replaceAll("_", " "), listed(texts(properties.drifted))]
        .filter(Boolean)
        .join(": ");
    case "notebook": {
      const failed = text(properties.failed_cell);
      return `${formatCount(metrics.cells)} cells${failed && ` · cell ${failed} failed`}`;
    }
    default:
      return Object.entries(metrics)
        .slice(0, 3)
        .map(([name, value]) => `${name.replaceAll("_", " ")} ${formatNumber(value)}`)
        .join(" · ");
  }
}

/** The page that fits what a stage made. */
export function pageOf({ stage, artifact }: { stage: StageRun; artifact: ArtifactEntry }): string {
  const model = stage.model_name ?? (text(artifact.properties.model_name) || undefined);
  switch (artifact.kind) {
    case "model":
      return runsPath(artifact.dag_id);
    case "evaluation":
      return model && artifact.properties.blessed === false
        ? modelsPath(artifact.dag_id, { model, candidate: artifact, tab: "evaluation" })
        : modelsPath(artifact.dag_id, { model });
    case "infra_blessing":
    case "deployment":
    case "rollout": {
      const version = text(artifact.properties.version) || undefined;
      return modelsPath(artifact.dag_id, { model, version: model && version });
    }
    default:
      return artifactPath(artifact);
  }
}
