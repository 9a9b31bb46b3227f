import { Box, Grid, Text } from "@chakra-ui/react";
import { formatPercent } from "airflow-hops";
import { Fragment } from "react";
import { Panel } from "src/extensions/experiments/Panel";

const MOST = 12;

/** Share of each parameter in the variance of the first metric. */
export function Importance({
  importance,
  metric,
}: {
  importance: Record<string, number | null>;
  metric: string | undefined;
}) {
  const ordered = Object.entries(importance).sort(([, one], [, other]) => (other ?? 0) - (one ?? 0));
  const left = ordered.length - MOST;
  return (
    <Panel title="Importance of parameters" note={`Share in the variance of ${metric} (fANOVA)`}>
      {ordered.length === 0 ? (
        <Text fontSize="sm" color="fg.muted" py={4}>
          Not known: too few trials are complete, or nothing varies.
        </Text>
      ) : (
        <Grid
          templateColumns="minmax(60px, max-content) 1fr max-content"
          gap={2}
          py={2}
          fontSize="sm"
          alignItems="center"
        >
          {ordered.slice(0, MOST).map(([name, share]) => (
            <Fragment key={name}>
              <Text overflowWrap="anywhere">{name}</Text>
              <Box bg="bg.muted" borderRadius="sm" h={3} aria-hidden>
                <Box bg="brand.solid" borderRadius="sm" h="full" width={`${Math.min(100 * (share ?? 0), 100)}%`} />
              </Box>
              <Text fontVariantNumeric="tabular-nums" textAlign="end">
                {formatPercent(share)}
              </Text>
            </Fragment>
          ))}
        </Grid>
      )}
      {left > 0 && (
        <Text fontSize="xs" color="fg.muted">
          {left} more matter less
        </Text>
      )}
    </Panel>
  );
}
