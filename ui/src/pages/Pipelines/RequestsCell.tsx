import { Skeleton, Text } from "@chakra-ui/react";
import type { Activity } from "src/api/pipelines";
import { ERROR } from "src/components/colors";
import { Sparkline } from "src/components/Sparkline";
import { TwoLines } from "src/components/TwoLines";
import { formatCount, formatNumber } from "src/format";

/** Requests a second in the last whole step; null where nobody counts. */
export function currentRate(activity: Activity | undefined): number | null {
  return activity?.traffic?.requests?.per_second.at(-1) ?? null;
}

/** Requests of the last hour, from the model server; where it keeps none, the rows of each skew check. */
export function RequestsCell({ serves, activity }: { serves: boolean; activity: Activity | undefined }) {
  if (!serves) {
    return <Text color="fg.muted">–</Text>;
  }
  if (activity === undefined) {
    return <Skeleton height="24px" width="96px" role="status" aria-label="Loading from the server" />;
  }
  const requests = activity.traffic?.requests;
  if (requests?.per_second.length) {
    const errors = requests.errors.reduce((sum, each) => sum + each, 0);
    const refused = requests.client_errors.reduce((sum, each) => sum + each, 0);
    const most = Math.max(...requests.per_second.map((each) => each ?? 0));
    const label = `Requests per second in the last hour, at most ${formatNumber(most, 3)}`;
    return (
      <TwoLines
        first={<Sparkline values={requests.per_second} label={label} />}
        second={
          <Text truncate fontVariantNumeric="tabular-nums">
            {formatNumber(currentRate(activity), 3)}/s
            {errors > 0 && (
              <Text as="span" color={ERROR} ms={2}>
                {formatCount(errors)} failed
              </Text>
            )}
            {refused > 0 && (
              <Text as="span" ms={2} title="Refused because of an error in the request">
                {formatCount(refused)} refused
              </Text>
            )}
          </Text>
        }
      />
    );
  }
  const rows = activity.skew.map((check) => check.rows);
  const counted = activity.traffic?.versions.reduce((sum, { requests: each }) => sum + each, 0);
  return (
    <TwoLines
      first={
        rows.length > 1 ? (
          <Sparkline values={rows} label="Rows of captured requests, by skew check" />
        ) : (
          <Text>{rows.length === 1 ? `${formatCount(rows[0])} rows` : "–"}</Text>
        )
      }
      second={
        <Text
          truncate
          title="The model server keeps no time series. Above: the rows of captured requests at each skew check"
        >
          {counted
            ? `${formatCount(counted)} requests in total`
            : rows.length > 0
              ? "at the last check"
              : "none counted"}
        </Text>
      }
    />
  );
}
