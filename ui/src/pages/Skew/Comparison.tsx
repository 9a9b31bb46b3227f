import { Box, Grid, Heading, HStack, Stack, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { api, type Schemas } from "src/api/client";
import { AppLink, LoadingBox, Notice, PlainTable, QueryView } from "src/components";
import { formatNumber, formatPercent, formatPValue } from "src/format";
import { measureName } from "src/measures";
import { Histogram } from "src/pages/Skew/Histogram";
import { causeInWords, changeInWords, classesInWords, FAULTS, formatEffect } from "src/pages/Skew/words";
import { type ArtifactRef, dataPath, pathOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

const CAPITAL = { textTransform: "uppercase" } as const;

/** A feature in one comparison: both histograms, figures, what it looks like and what it does. */
export function Comparison({
  check,
  feature,
  judged,
}: {
  check: ArtifactRef;
  feature: string;
  /** Whether there were enough rows for a verdict. */
  judged: boolean;
}) {
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/skew/feature",
    { params: { path: pathOf(check), query: { feature } } },
    { placeholderData: keepPreviousData, staleTime: Number.POSITIVE_INFINITY },
  );
  return (
    <QueryView query={query} loading={<LoadingBox height="360px" />}>
      {(found) => <Found check={check} found={found as Schemas["FeatureComparison"]} judged={judged} />}
    </QueryView>
  );
}

function Found({ check, found, judged }: { check: ArtifactRef; found: Schemas["FeatureComparison"]; judged: boolean }) {
  const dagId = useDagId();
  const fault = found.cause !== null && FAULTS.has(found.cause);
  const words = changeInWords(found, found.problem);
  return (
    <Stack gap={3}>
      <HStack justify="space-between" align="baseline">
        <Heading as="h3" size="sm">
          Reference and current
        </Heading>
        <AppLink to={dataPath(dagId, { artifacts: [check], feature: found.name })} fontSize="sm">
          Overlay on the Data page
        </AppLink>
      </HStack>
      {judged && found.drifted ? (
        <Notice
          status={fault ? "error" : "warning"}
          size="sm"
          title={
            <Text fontWeight="semibold" _firstLetter={CAPITAL}>
              {words}
            </Text>
          }
        >
          {found.cause !== null && causeInWords(found.cause)}
        </Notice>
      ) : (
        <Text fontSize="sm">
          {judged ? "Not drifted" : "Too few rows for a verdict"}
          {words && `: ${words}`}.
        </Text>
      )}
      <Histogram found={found} />
      <Figures>
        <Figure label={measureName(found.measure ?? "")}>
          <b>{formatNumber(found.score)}</b>, threshold {formatNumber(found.threshold)}
        </Figure>
        <Figure label="Probability of such a score without a change">{formatPValue(found.p_value)}</Figure>
        <Figure label="Missing values">
          {formatPercent(found.missing_reference)} → {formatPercent(found.missing_current)}
          {found.missing_p_value !== null && found.missing_p_value < 1 && ` (${formatPValue(found.missing_p_value)})`}
        </Figure>
        {found.effect !== null && (
          <Figure label="Mean change of a prediction">
            {formatEffect(found.effect, found.problem)}
            {found.standard_error !== null &&
              ` (± ${formatEffect(2 * found.standard_error, found.problem, 2).replace("%", "")})`}
          </Figure>
        )}
        {Object.keys(found.effect_by_class).length > 0 && (
          <Figure label="By class">{classesInWords(found.effect_by_class)}</Figure>
        )}
        {Object.entries(found.scores)
          .filter(([name]) => name !== found.measure)
          .map(([name, score]) => (
            <Figure key={name} label={measureName(name)} muted>
              {formatNumber(score)}
            </Figure>
          ))}
      </Figures>
      {found.rows && <RowExamples rows={found.rows} />}
    </Stack>
  );
}

/** Figures, each right beside its name, however wide the page is. */
function Figures({ children }: { children: ReactNode }) {
  return (
    <Grid
      as="dl"
      templateColumns="minmax(0, max-content) auto"
      justifyContent="start"
      columnGap={6}
      rowGap={1}
      fontSize="sm"
    >
      {children}
    </Grid>
  );
}

function Figure({ label, muted = false, children }: { label: string; muted?: boolean; children: ReactNode }) {
  return (
    <>
      <Text as="dt" color="fg.muted" _firstLetter={CAPITAL}>
        {label}
      </Text>
      <Box as="dd" fontVariantNumeric="tabular-nums" color={muted ? "fg.muted" : undefined}>
        {children}
      </Box>
    </>
  );
}

const asText = (value: unknown): string =>
  value === null || value === undefined ? "none" : typeof value === "string" ? value : JSON.stringify(value);

const nameOf = ({ identifier }: Schemas["RowExample"]): string => Object.values(identifier).map(asText).join(", ");

/** How a feature differs between the served rows and the training rows of the same identifiers, with examples. */
function RowExamples({ rows }: { rows: Schemas["RowFeature"] }) {
  const { diff_count: differ, mismatch_count: mismatch, base_only, test_only, match_count, examples } = rows;
  const pairs = differ + match_count;
  return (
    <Box>
      <Heading as="h3" size="sm" mb={1}>
        Row by row
      </Heading>
      <Text fontSize="sm" color="fg.muted">
        {differ === 0
          ? `All ${formatNumber(pairs)} joined rows have the same value as the training data.`
          : `${formatNumber(differ)} of ${formatNumber(pairs)} joined rows differ: ${formatNumber(mismatch)} have another value, ${formatNumber(base_only)} have a value only in training, ${formatNumber(test_only)} only when served.`}
      </Text>
      {examples.length > 0 && (
        <PlainTable
          label="Rows that differ"
          mt={2}
          rows={examples}
          rowKey={nameOf}
          columns={[
            { label: "Row", cell: nameOf },
            { label: "Training", cell: ({ training }) => asText(training) },
            { label: "Served", cell: ({ serving }) => asText(serving) },
          ]}
        />
      )}
    </Box>
  );
}
