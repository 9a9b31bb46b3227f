import { Skeleton, Text } from "@chakra-ui/react";
import type { Activity } from "src/api/pipelines";
import { formatCount } from "src/format";

/** Requests that the versions of a pipeline's model have answered since the server started; null where none are counted. */
export function requestsOf(activity: Activity | undefined): number | null {
  const versions = activity?.traffic?.versions ?? [];
  return versions.length > 0 ? versions.reduce((sum, { requests }) => sum + requests, 0) : null;
}

/** How many requests the model server has counted. */
export function RequestsCell({ serves, activity }: { serves: boolean; activity: Activity | undefined }) {
  if (serves && activity === undefined) {
    return <Skeleton height="24px" width="96px" role="status" aria-label="Loading from the server" />;
  }
  const requests = serves ? requestsOf(activity) : null;
  return (
    <Text color={requests === null ? "fg.muted" : undefined}>{requests === null ? "–" : formatCount(requests)}</Text>
  );
}
