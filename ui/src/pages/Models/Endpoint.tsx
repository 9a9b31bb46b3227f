import { Box, Flex, Grid, HStack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { CopyButton, ERROR, LinesAlert, Notice, QueryView, Segments, StateBadge, Time, Tooltip } from "src/components";
import { formatCount, formatDuration, formatNumber, formatPercent } from "src/format";
import { type LiveModel, liveOptions, type ModelDetail, SPANS, useMinutes } from "src/pages/Models/queries";
import { ratesOf } from "src/pages/Models/rates";
import { Scoring } from "src/pages/Models/Scoring";
import { TrafficBar } from "src/pages/Models/TrafficBar";
import { sharesInWords } from "src/pages/Models/words";

const CHOICES = SPANS.map((minutes) => [String(minutes), formatDuration(60 * minutes)] as const);

/** How the endpoint does now: shares, rates, errors, latencies, batches. */
export function Endpoint({ dagId, detail }: { dagId: string; detail: ModelDetail }) {
  const [minutes, setMinutes] = useMinutes();
  const live = useQuery(liveOptions(dagId, detail.name, minutes));
  if (live.data?.scores_tables) {
    return <Scoring dagId={dagId} model={detail.name} />;
  }
  return (
    <Box as="section" aria-label="Endpoint" borderWidth={1} borderRadius="md" px={4} py={3}>
      <HStack mb={3} gap={3} wrap="wrap">
        <Text fontWeight="semibold">Endpoint</Text>
        {live.data && <Server live={live.data} />}
        <Segments
          size="xs"
          marginInlineStart="auto"
          label="Time span"
          value={String(minutes)}
          onChange={(value) => setMinutes(Number(value))}
          items={CHOICES}
        />
      </HStack>
      <QueryView query={live}>{(now) => <Live live={now} detail={detail} minutes={minutes} />}</QueryView>
    </Box>
  );
}

/** Whether the server answers. */
export const ServerBadge = ({ live: { external, problem } }: { live: LiveModel }) => (
  <StateBadge state={external ? "external" : problem ? "error" : "ok"} size="sm">
    {external ? "external" : problem ? "no answer" : "answers"}
  </StateBadge>
);

function Server({ live }: { live: LiveModel }) {
  return (
    <HStack gap={2} wrap="wrap" fontSize="sm" color="fg.muted">
      <ServerBadge live={live} />
      {live.address}
      {live.address && <CopyButton text={live.address} label="Copy the address" />}
      {live.since && (
        <span>
          · up since <Time at={live.since} />
        </span>
      )}
    </HStack>
  );
}

function Live({ live, detail, minutes }: { live: LiveModel; detail: ModelDetail; minutes: number }) {
  if (live.external) {
    return (
      <Text fontSize="sm" color="fg.muted">
        {detail.name} was adopted and is served there, outside of this installation: only its log tells of its requests.
      </Text>
    );
  }
  if (live.problem) {
    return <Away problem={live.problem} detail={detail} />;
  }
  const { series } = live;
  const shares = live.versions.map(({ version, traffic_percent }) => ({ version, percent: traffic_percent ?? 0 }));
  const inEffect = Object.fromEntries(shares.map(({ version, percent }) => [String(version), percent]));
  const decided = sharesInWords(detail.traffic);
  const pending = detail.champion !== null && sharesInWords(inEffect) !== decided;
  const rates = series && ratesOf(series, minutes);
  return (
    <Flex direction="column" gap={3}>
      <Box>
        <TrafficBar shares={shares} />
        <LinesAlert lines={[pending && live.kind === "bundled" && `Decided, and not served yet: ${decided}`]} />
      </Box>
      {series && rates ? (
        <Grid templateColumns="repeat(auto-fit, minmax(120px, 1fr))" gap={3}>
          <Tile
            label="Requests"
            value={formatNumber(rates.perSecond, 3)}
            unit="/s"
            help={`${rates.requests} in total`}
          />
          <Tile
            label="Errors"
            value={formatPercent(rates.errorShare)}
            help={`${rates.errors} of ${rates.requests} requests failed because of an error on the server`}
            bad={rates.errors > 0}
          />
          <Tile
            label="Refused"
            value={formatPercent(rates.refusedShare)}
            help={`${rates.refused} of ${rates.requests} requests were refused because of an error in the request`}
          />
          <Tile
            label="Latency p50"
            value={formatNumber(rates.p50, 3)}
            unit="ms"
            help="Measured in the server: the mean of the medians of ten-second steps, weighted by requests"
          />
          <Tile
            label="Latency p99"
            value={formatNumber(rates.p99, 3)}
            unit="ms"
            help={`Measured in the server: the mean of the ten-second steps, weighted by requests; the worst step had ${formatNumber(rates.worst, 3)} ms`}
          />
          <Batches live={live} />
        </Grid>
      ) : (
        <Totals live={live} />
      )}
    </Flex>
  );
}

function Batches({ live }: { live: LiveModel }) {
  const batching = live.series?.batching;
  if (!batching) {
    return null; // This server does not batch requests (--enable_batching), or has not batched any yet.
  }
  const sum = (values: readonly (number | null)[]) => values.reduce((a: number, b) => a + (b ?? 0), 0);
  const batches = sum(batching.batches);
  const requests = sum(batching.requests);
  const sizes = batching.sizes.map(([rows, n]) => `≤ ${rows ?? "∞"} rows: ${formatCount(n)}`).join("\n");
  return (
    <>
      <Tile
        label="Rows per batch"
        value={batches ? formatNumber(sum(batching.rows) / batches, 3) : "–"}
        help={`Of all models of this server. Batches since its start:\n${sizes}`}
      />
      <Tile
        label="Batching wait"
        value={requests ? formatNumber((1000 * sum(batching.wait_s)) / requests, 3) : "–"}
        unit="ms"
        help="Average time that a request waited for its batch"
      />
    </>
  );
}

function Away({ problem, detail }: { problem: string; detail: ModelDetail }) {
  return (
    <Notice status="error" alignItems="flex-start" title="The model server does not respond">
      <Text>{problem}</Text>
      <Text mt={1}>
        {detail.champion
          ? `The decided traffic is ${sharesInWords(detail.traffic)}; the server serves it again once it is back. `
          : ""}
        This page retries every few seconds.
      </Text>
    </Notice>
  );
}

function Totals({ live }: { live: LiveModel }) {
  const requests = live.versions.reduce((sum, each) => sum + each.requests, 0);
  return (
    <Text color="fg.muted" fontSize="sm">
      {live.kind === "bundled"
        ? `This server keeps no time series; it has received ${formatCount(requests)} requests since it started.`
        : `This is a ${live.kind}, which keeps no counts per version; its Prometheus endpoint has its metrics.`}
    </Text>
  );
}

type TileProps = { label: string; value: string; unit?: string; help: string; bad?: boolean };

/** A figure with its name and unit; more words on hover. */
function Tile({ label, value, unit, help, bad = false }: TileProps) {
  return (
    <Tooltip content={<Text whiteSpace="pre-line">{help}</Text>}>
      <Box bg="bg.subtle" borderRadius="md" px={3} py={1.5} tabIndex={0} role="group" aria-label={`${label}: ${value}`}>
        <Text fontSize="xs" color="fg.muted">
          {label}
        </Text>
        <Text fontSize="lg" fontWeight="semibold" fontVariantNumeric="tabular-nums" color={bad ? ERROR : "fg"}>
          {value}
          {unit && value !== "–" && (
            <Text as="span" fontSize="sm" fontWeight="normal" color="fg.muted">
              {" "}
              {unit}
            </Text>
          )}
        </Text>
      </Box>
    </Tooltip>
  );
}
