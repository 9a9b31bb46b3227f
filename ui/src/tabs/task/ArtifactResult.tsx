import { Badge, Heading, HStack, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "src/api/client";
import { AppLink, Notice, Numbers, StateBadge, Time } from "src/components";
import { formatBytes, formatNumber } from "src/format";
import { useArtifactPage } from "src/hooks/useExtensions";
import { CandidateEvaluation } from "src/pages/Models/EvaluationView";
import { artifactPath, dataPath, lineagePath, modelsPath } from "src/routes";
import { ExtensionView } from "src/shell/ExtensionView";
import { anomaliesInWords } from "src/tabs/run/stages";
import { ModelResult } from "src/tabs/task/ModelResult";
import { Reasons, RowsTable } from "src/tabs/task/parts";
import { numberIn, recordIn, textIn, textsIn } from "src/tabs/task/properties";
import { SkewResult } from "src/tabs/task/SkewResult";

type Artifact = Schemas["ArtifactEntry"];

const PAGES: Record<string, string> = {
  statistics: "Statistics",
  schema: "Schema",
  anomalies: "Anomalies",
  skew: "Skew",
};

/** What a task has made, by its kind: the figures that matter, and the way to the page that shows all of it. */
export function ArtifactResult({ artifact }: { artifact: Artifact }) {
  return (
    <Stack gap={3} as="section" aria-label={artifact.kind}>
      <HStack gap={4} wrap="wrap">
        <Heading size="md">{titleOf(artifact.kind)}</Heading>
        {artifact.cached && <Badge variant="subtle">taken from an earlier run</Badge>}
        {artifact.size_bytes !== null && (
          <Text fontSize="sm" color="fg.muted">
            {formatBytes(artifact.size_bytes)}
          </Text>
        )}
        <HStack gap={4} marginInlineStart="auto" fontSize="sm">
          {PAGES[artifact.kind] && <AppLink to={artifactPath(artifact)}>{PAGES[artifact.kind]}</AppLink>}
          <AppLink to={lineagePath(artifact.dag_id, { artifact })}>Lineage</AppLink>
        </HStack>
      </HStack>
      {artifact.state !== "present" && (
        <Notice status="warning" title={artifact.detail ?? "The artifact no longer exists."} />
      )}
      <Content artifact={artifact} />
    </Stack>
  );
}

const titleOf = (kind: string): string => `${kind.charAt(0).toUpperCase()}${kind.slice(1).replaceAll("_", " ")}`;

function Content({ artifact }: { artifact: Artifact }): ReactNode {
  const { kind, metrics, properties, rows } = artifact;
  const page = useArtifactPage(kind);
  if (page) {
    return <ExtensionView page={page} artifact={artifact} />;
  }
  switch (kind) {
    case "model":
      return <ModelResult artifact={artifact} />;
    case "evaluation":
      return artifact.state === "present" && <CandidateEvaluation judged={artifact} />;
    case "skew":
      return <SkewResult artifact={artifact} />;
    case "statistics":
      return (
        <>
          <Numbers
            of={[
              ["features", formatNumber(metrics.features)],
              ...Object.entries(rows).map(
                ([split, { rows_in }]) =>
                  [
                    `rows of ${split}`,
                    <AppLink key={split} to={dataPath(artifact.dag_id, { artifacts: [artifact], split })}>
                      {formatNumber(rows_in)}
                    </AppLink>,
                  ] as const,
              ),
            ]}
          />
          <Window of={properties} />
        </>
      );
    case "anomalies":
      return (
        <>
          <Numbers
            of={[
              [
                "verdict",
                <StateBadge key="state" state={metrics.errors ? "error" : metrics.warnings ? "warning" : "ok"}>
                  {anomaliesInWords(metrics)}
                </StateBadge>,
              ],
            ]}
          />
          <Reasons of={[...textsIn(properties, "errors"), ...textsIn(properties, "warnings")]} />
          <RowsTable rows={rows} />
        </>
      );
    case "deployment":
    case "rollout":
      return <Decision artifact={artifact} />;
    case "infra_blessing":
      return (
        <Numbers
          of={[
            ["verdict", <StateBadge key="state" state={properties.blessed ? "blessed" : "not blessed"} />],
            ["loads in", `${formatNumber(metrics.load_seconds, 3)} s`],
            ["answers gRPC in", `${formatNumber(metrics.grpc_median_ms, 3)} ms`],
            ["answers REST in", `${formatNumber(metrics.rest_median_ms, 3)} ms`],
            ["rows sent", formatNumber(metrics.rows)],
          ]}
        />
      );
    default:
      return (
        <>
          <Window of={properties} />
          <RowsTable rows={rows} />
          <Reasons of={textsIn(properties, "warnings")} />
          {Object.keys(rows).length === 0 && (
            <Numbers of={Object.entries(metrics).map(([name, value]) => [name, formatNumber(value)])} />
          )}
        </>
      );
  }
}

/** The times of the rows; null at a side that is open. */
function Window({ of }: { of: Artifact["properties"] }) {
  const window: unknown = of.window;
  const [from, until] = Array.isArray(window) ? window.map((time) => (typeof time === "string" ? time : null)) : [];
  return from || until ? (
    <Text fontSize="sm" color="fg.muted">
      Data{" "}
      {from && (
        <>
          from <Time at={from} exact />{" "}
        </>
      )}
      {until && (
        <>
          until <Time at={until} exact />
        </>
      )}
    </Text>
  ) : null;
}

/** What a deployment or a rollout decided, by which numbers. */
function Decision({ artifact }: { artifact: Artifact }) {
  const { properties, metrics } = artifact;
  const name = textIn(properties, "model_name");
  const version = numberIn(properties, "version");
  const traffic = Object.entries(recordIn(properties, "traffic"));
  return (
    <>
      <Numbers
        of={[
          ["decision", textIn(properties, "decision") ?? textIn(properties, "mode") ?? "–"],
          [
            "version",
            name ? (
              <AppLink key="version" to={modelsPath(artifact.dag_id, { model: name, version: version ?? undefined })}>
                {name} v{version}
              </AppLink>
            ) : (
              version
            ),
          ],
          ["champion", textIn(properties, "champion") ?? "–"],
          ["traffic", traffic.map(([each, share]) => `v${each} ${share}%`).join(", ") || "–"],
          ...(metrics.canary_requests === undefined
            ? []
            : ([
                [
                  "canary's errors",
                  `${formatNumber(metrics.canary_errors)} of ${formatNumber(metrics.canary_requests)}`,
                ],
                [
                  "stable's errors",
                  `${formatNumber(metrics.stable_errors)} of ${formatNumber(metrics.stable_requests)}`,
                ],
              ] as const)),
        ]}
      />
      <Reasons of={textsIn(properties, "reasons")} />
    </>
  );
}
