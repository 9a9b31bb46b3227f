/**
 * What the pages of extensions take from these pages, on `globalThis.AirflowHops`: `import { DataTable } from "airflow-hops"`.
 *
 * One copy of each, and one state: the queries, the address, the theme of charts.
 */

export { api, apiAddress, client, type Schemas } from "src/api/client";
export { usePipelines } from "src/api/pipelines";
export * from "src/components/ActionButton";
export * from "src/components/AppLink";
export * from "src/components/Choice";
export * from "src/components/CodeBlock";
export * from "src/components/ConfirmDialog";
export * from "src/components/CopyButton";
export { Chart } from "src/components/chart/Chart";
export type { EChartsCoreOption } from "src/components/chart/echarts";
export { type ChartTheme, useChartTheme } from "src/components/chart/theme";
export { type TooltipLine, tooltipLines } from "src/components/chart/tooltip";
export * from "src/components/colors";
export * from "src/components/DataTable";
export * from "src/components/Empty";
export * from "src/components/FilterBar";
export * from "src/components/LinesAlert";
export * from "src/components/Loading";
export * from "src/components/Notice";
export { Numbers } from "src/components/Numbers";
export * from "src/components/Owners";
export * from "src/components/Part";
export * from "src/components/PlainTable";
export * from "src/components/QueryView";
export * from "src/components/Segments";
export * from "src/components/ShowMore";
export * from "src/components/SideDrawer";
export * from "src/components/Sparkline";
export * from "src/components/StateBadge";
export * from "src/components/TabPanels";
export * from "src/components/Time";
export * from "src/components/Toggle";
export * from "src/components/Tooltip";
export { type Column, column, numberColumn } from "src/components/table";
export * from "src/format";
export * from "src/hooks/useQueryState";
export { useTimezone } from "src/host";
export { metricLabel } from "src/pages/Models/words";
export * from "src/routes";
export type { ExtensionProps } from "src/shell/ExtensionView";
export { numberIn, recordIn, textsIn } from "src/tabs/task/properties";
