import type { IconType } from "react-icons";
import {
  LuActivity,
  LuBoxes,
  LuBrain,
  LuChartColumn,
  LuDatabase,
  LuGauge,
  LuLock,
  LuMilestone,
  LuNotebookText,
  LuRocket,
  LuScrollText,
  LuServerCog,
  LuShieldCheck,
  LuShuffle,
  LuSparkles,
  LuTable2,
  LuTrendingUp,
} from "react-icons/lu";
import { formatBytes, formatCount, formatNumber } from "src/format";
import { labelInWords } from "src/pages/Data/overview/features";
import type { Node } from "src/pages/Lineage/graph";

interface Kind {
  label: string;
  icon: IconType;
  /** A palette of the host's theme: data is blue, what is known of it teal, models purple, serving green. */
  palette: string;
}

const KINDS: Record<string, Kind> = {
  snapshot: { label: "Snapshot", icon: LuDatabase, palette: "blue" },
  examples: { label: "Examples", icon: LuTable2, palette: "blue" },
  transformed_examples: { label: "Transformed examples", icon: LuShuffle, palette: "blue" },
  predictions: { label: "Predictions", icon: LuSparkles, palette: "blue" },
  statistics: { label: "Statistics", icon: LuChartColumn, palette: "teal" },
  schema: { label: "Schema", icon: LuScrollText, palette: "teal" },
  anomalies: { label: "Anomalies", icon: LuShieldCheck, palette: "teal" },
  skew: { label: "Skew", icon: LuActivity, palette: "orange" },
  performance: { label: "Performance", icon: LuTrendingUp, palette: "orange" },
  model: { label: "Model", icon: LuBrain, palette: "purple" },
  evaluation: { label: "Evaluation", icon: LuGauge, palette: "purple" },
  infra_blessing: { label: "Serving check", icon: LuServerCog, palette: "purple" },
  deployment: { label: "Deployment", icon: LuRocket, palette: "green" },
  notebook: { label: "Notebook", icon: LuNotebookText, palette: "teal" },
  rollout: { label: "Rollout", icon: LuMilestone, palette: "green" },
};

const HIDDEN: Kind = { label: "Hidden", icon: LuLock, palette: "gray" };

/** How a kind of artifact is shown. */
export const kindOf = (node: Node): Kind =>
  node.state === "hidden"
    ? HIDDEN
    : (KINDS[node.kind] ?? { label: node.kind.replaceAll("_", " "), icon: LuBoxes, palette: "gray" });

/** The metrics that say most of an artifact, best first. */
const HEADLINES = ["eval_auc", "auc", "eval_accuracy", "accuracy", "eval_rmse"];

/** A line that tells an artifact from others of its kind. */
export function summaryOf(node: Node): string {
  if (node.state === "hidden") {
    return "made by a DAG that you do not have permission to read";
  }
  if (node.state !== "present") {
    return node.state;
  }
  const { facts } = node;
  switch (node.kind) {
    case "evaluation":
    case "infra_blessing":
      return [facts.blessed === true ? "blessed" : "not blessed", headline(node)].filter(Boolean).join(" · ");
    case "deployment":
      return `${facts.model_name} v${facts.version} as ${facts.mode}`;
    case "rollout":
      return `${facts.model_name} v${facts.version}: ${String(facts.decision).replaceAll("_", " ")}`;
    case "skew":
      return String(facts.verdict).replaceAll("_", " ");
    case "model":
      return [headline(node), rows(node)].filter(Boolean).join(" · ");
    default:
      return [rows(node), spanOf(node)].filter(Boolean).join(" · ") || formatBytes(node.size_bytes);
  }
}

function headline(node: Node): string {
  const name = HEADLINES.find((each) => typeof node.metrics[each] === "number");
  return name ? `${name} ${formatNumber(node.metrics[name], 3)}` : "";
}

const rows = (node: Node): string => (node.rows === null ? "" : `${formatCount(node.rows)} rows`);

/** What is to be predicted, as far as an artifact tells: the label, and its problem or its classes. */
export function targetOf({ facts: { label, problem, classes } }: Node): string {
  if (typeof label !== "string" || typeof problem !== "string") {
    return "";
  }
  return `${label} · ${Array.isArray(classes) ? labelInWords(problem, classes.map(String)) : problem}`;
}

/** The time that the rows are of, in days. */
export function spanOf(node: Node): string {
  const [start, end] = node.window ?? [];
  return start && end ? `${start.slice(0, 10)} – ${end.slice(0, 10)}` : "";
}
