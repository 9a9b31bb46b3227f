import { Box } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ErrorAlert } from "src/components/ErrorAlert";
import { LoadingRows } from "src/components/Loading";

const DIMMED = { "&[aria-busy=true] > *": { opacity: 0.5 } };

/** Dims what is of the choice before, while that of the present one is awaited. */
export function Dimmed({ when, children }: { when: boolean; children: ReactNode }) {
  return (
    <Box display="contents" aria-busy={when || undefined} css={DIMMED}>
      {children}
    </Box>
  );
}

interface Props<Data> {
  query: UseQueryResult<Data, unknown>;
  loading?: ReactNode;
  children: (data: Data) => ReactNode;
}

/**
 * Shows a query's data, and until it is there a skeleton, or what went wrong.
 *
 * Old data stays while new is fetched, dimmed where it is of another query: of the choice before.
 */
export function QueryView<Data>({ query, loading, children }: Props<Data>) {
  const failure = query.isError && <ErrorAlert error={query.error} retry={() => void query.refetch()} />;
  if (query.data === undefined) {
    return failure || (loading ?? <LoadingRows />);
  }
  return (
    <>
      {failure}
      <Dimmed when={query.isPlaceholderData}>{children(query.data)}</Dimmed>
    </>
  );
}
