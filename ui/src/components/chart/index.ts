/** Charts, for pages; within this folder, modules are imported by their own names. */

export * from "src/components/chart/Chart";
export type { EChartsCoreOption } from "src/components/chart/echarts";
export * from "src/components/chart/theme";
export * from "src/components/chart/tooltip";
