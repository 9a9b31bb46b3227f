import { Box, Button, Grid, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { api } from "src/api/client";
import { CodeBlock, Notice, QueryView, Segments } from "src/components";
import { useQuery, useQueryParam } from "src/hooks/useQueryState";
import { FeaturePanel } from "src/pages/Schema/FeaturePanel";
import { FeatureTable } from "src/pages/Schema/FeatureTable";
import { gather } from "src/pages/Schema/findings";
import {
  type AnomalousFeature,
  type SchemaSummary,
  useReport,
  useSchema,
  type ValidationEntry,
} from "src/pages/Schema/queries";
import { aspectName } from "src/pages/Schema/words";

interface Props {
  dagId: string;
  schema: SchemaSummary;
  latest: ValidationEntry | undefined;
}

/** A version of a schema, by default what lies there now: as a table, or as text. */
export function SchemaView({ dagId, schema, latest }: Props) {
  const [query, change] = useQuery();
  const [view, setView] = useQueryParam("view", "table");
  const named = Number(query.get("version"));
  const version = schema.versions.some((each) => each.version === named) ? named : null;
  const described = useSchema(dagId, schema.name, version, view === "table");
  const old = version !== null && !schema.versions.find((each) => each.version === version)?.in_force;
  const opened = query.get("feature");
  const anomalous = useAnomalous(latest);
  const choice = (
    <Segments
      label="View"
      value={view}
      onChange={setView}
      items={[
        ["table", "Table"],
        ["text", "Text"],
      ]}
    />
  );
  return (
    <Box>
      {old && (
        <Notice
          status="info"
          size="sm"
          mb={3}
          alignItems="center"
          title={`This is version ${version}, which is not in force`}
          action={
            <Button size="xs" variant="outline" onClick={() => change({ version: null })}>
              Show the version in force
            </Button>
          }
        />
      )}
      {view === "text" ? (
        <>
          <Box mb={3}>{choice}</Box>
          <SchemaText dagId={dagId} name={schema.name} version={version} />
        </>
      ) : (
        <QueryView query={described}>
          {(detail) => {
            const feature = detail.features.find(({ name }) => name === opened);
            return (
              <Grid gap={4} templateColumns={{ base: "1fr", xl: feature ? "minmax(0, 1fr) 26rem" : "1fr" }}>
                <Box minW={0}>
                  {detail.constraints.length > 0 && (
                    <Text fontSize="sm" color="fg.muted" mb={2} wordBreak="break-word">
                      Constraints on the whole schema:{" "}
                      {detail.constraints.map(({ name, text }) => `${aspectName(name)} ${text}`).join("; ")}
                    </Text>
                  )}
                  <FeatureTable
                    schema={schema}
                    detail={detail}
                    anomalous={anomalous}
                    end={choice}
                    opened={opened}
                    onOpen={(name) => change({ feature: name === opened ? null : name }, { push: opened === null })}
                  />
                </Box>
                {feature && (
                  <FeaturePanel
                    dagId={dagId}
                    schema={schema}
                    version={version}
                    feature={feature}
                    environments={detail.environments}
                    anomaly={anomalous.find((each) => each.feature === feature.name)}
                    onClose={() => change({ feature: null })}
                  />
                )}
              </Grid>
            );
          }}
        </QueryView>
      )}
    </Box>
  );
}

/** A schema as protobuf text. */
function SchemaText({ dagId, name, version }: { dagId: string; name: string; version: number | null }) {
  const text = api.useQuery("get", "/api/dags/{dag_id}/schemas/{name}/text", {
    params: { path: { dag_id: dagId, name }, query: version === null ? {} : { version } },
    parseAs: "text",
  });
  return (
    <QueryView query={text}>
      {(shown) => <CodeBlock label="the schema" code={String(shown)} maxHeight="65vh" />}
    </QueryView>
  );
}

const NONE: readonly AnomalousFeature[] = [];

/** All features that a validation found anomalous: the list of validations has the first of very many. */
function useAnomalous(validation: ValidationEntry | undefined): readonly AnomalousFeature[] {
  const known = validation?.features ?? NONE;
  const { data: report } = useReport(validation?.address, (validation?.features_total ?? 0) > known.length);
  return useMemo(
    () =>
      report === undefined
        ? known
        : gather(report).map(({ feature, severity, drifted, summaries, bySplit }) => ({
            feature,
            severity,
            drifted,
            summaries,
            splits: Object.keys(bySplit),
          })),
    [report, known],
  );
}
