/**
 * What the pages of extensions take from these pages, on `globalThis.AirflowHops`: `import { DataTable } from "airflow-hops"`.
 *
 * One copy of each, and one state: the queries, the address, the theme of charts.
 */

export { api, apiAddress, client, type Schemas } from "src/api/client";
export { usePipelines } from "src/api/pipelines";
export * from "src/components";
export * from "src/components/chart";
export * from "src/format";
export * from "src/hooks/useQueryState";
export { useTimezone } from "src/host";
export { metricLabel } from "src/pages/Models/words";
export { CAUSE_LABELS, VERDICT_STATES } from "src/pages/Skew/words";
export * from "src/routes";
export type { ExtensionProps } from "src/shell/ExtensionView";
export { numberIn, recordIn, textsIn } from "src/tabs/task/properties";
