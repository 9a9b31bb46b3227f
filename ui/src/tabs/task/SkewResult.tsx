import { Box, Table, Text, VisuallyHidden } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { WARNING } from "src/components/colors";
import { StateBadge } from "src/components/StateBadge";
import { formatNumber } from "src/format";
import { skewPath } from "src/routes";
import { Numbers } from "src/tabs/task/parts";
import { recordIn, textIn, textsIn } from "src/tabs/task/properties";

const MOST = 10;

/** A comparison with the training data: verdict, what drifted and why, the largest distances. */
export function SkewResult({ artifact }: { artifact: Schemas["ArtifactEntry"] }) {
  const { properties, metrics } = artifact;
  const drifted = [
    ...new Set([...textsIn(properties, "drifted"), ...textsIn(properties, "skewed"), ...textsIn(properties, "lost")]),
  ];
  const causes = recordIn(properties, "causes");
  const scores = Object.entries(recordIn(properties, "scores"))
    .flatMap(([name, found]) =>
      Array.isArray(found) ? [{ name, score: Number(found[0]), threshold: Number(found[1]) }] : [],
    )
    .sort((a, b) => b.score / b.threshold - a.score / a.threshold)
    .slice(0, MOST);
  return (
    <>
      <Numbers
        of={[
          ["verdict", <StateBadge key="verdict" state={textIn(properties, "verdict")} />],
          ["features that drifted", formatNumber(drifted.length)],
          ["current rows", formatNumber(metrics.rows_current)],
          ["reference rows", formatNumber(metrics.rows_reference)],
        ]}
      />
      {scores.length > 0 && (
        <Table.Root size="sm" maxW="4xl" aria-label="Largest distances">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Feature</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Score</Table.ColumnHeader>
              <Table.ColumnHeader textAlign="end">Threshold</Table.ColumnHeader>
              <Table.ColumnHeader>
                <VisuallyHidden>Score and threshold</VisuallyHidden>
              </Table.ColumnHeader>
              <Table.ColumnHeader>Cause</Table.ColumnHeader>
            </Table.Row>
          </Table.Header>
          <Table.Body fontVariantNumeric="tabular-nums">
            {scores.map(({ name, score, threshold }) => (
              <Table.Row key={name}>
                <Table.Cell py={1}>
                  <AppLink to={skewPath(artifact.dag_id, { artifact, feature: name })}>{name}</AppLink>
                </Table.Cell>
                <Table.Cell py={1} textAlign="end">
                  {formatNumber(score, 3)}
                </Table.Cell>
                <Table.Cell py={1} textAlign="end">
                  {formatNumber(threshold, 3)}
                </Table.Cell>
                <Table.Cell py={1} width="140px">
                  <Bar ratio={score / threshold} />
                </Table.Cell>
                <Table.Cell py={1}>
                  {drifted.includes(name) && (
                    <Text color={WARNING} fontWeight="medium">
                      {causeIn(causes, name)}
                    </Text>
                  )}
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      )}
    </>
  );
}

/** How a score stands to its threshold, which is the bar's middle. */
function Bar({ ratio }: { ratio: number }) {
  return (
    <Box
      position="relative"
      height="8px"
      bg="bg.muted"
      borderRadius="sm"
      title={`${formatNumber(ratio, 3)} of the threshold`}
    >
      <Box
        height="full"
        width={`${Math.min(ratio, 2) * 50}%`}
        bg={ratio > 1 ? "warning.solid" : "fg.subtle"}
        borderRadius="sm"
      />
      <Box position="absolute" left="50%" top="-2px" bottom="-2px" borderLeftWidth={1} borderColor="fg.muted" />
    </Box>
  );
}

function causeIn(causes: Record<string, unknown>, name: string): string {
  return (textIn(causes, name) ?? "drifted").replaceAll("_", " ");
}
