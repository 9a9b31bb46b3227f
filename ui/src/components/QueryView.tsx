import { Box } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ErrorAlert } from "src/components/ErrorAlert";
import { LoadingRows } from "src/components/Loading";

const DIMMED = { "&[aria-busy=true] > *": { opacity: 0.5 } };

/**
 * Shows a query's data, and until it is there a skeleton, or what went wrong.
 *
 * Old data stays while new is fetched, dimmed where it is of another query: of the choice before.
 */
export function QueryView<Data>({
  query,
  loading,
  children,
}: {
  query: UseQueryResult<Data, unknown>;
  loading?: ReactNode;
  children: (data: Data) => ReactNode;
}) {
  if (query.data !== undefined) {
    return (
      <>
        {query.isError && <ErrorAlert error={query.error} retry={() => void query.refetch()} />}
        <Box display="contents" aria-busy={query.isPlaceholderData || undefined} css={DIMMED}>
          {children(query.data)}
        </Box>
      </>
    );
  }
  if (query.isError) {
    return <ErrorAlert error={query.error} retry={() => void query.refetch()} />;
  }
  return loading ?? <LoadingRows />;
}
