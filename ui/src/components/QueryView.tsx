import type { UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ErrorAlert } from "src/components/ErrorAlert";
import { LoadingRows } from "src/components/Loading";

/** Shows a query's data, and until it is there a skeleton, or what went wrong. Old data stays while new is fetched. */
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
        {children(query.data)}
      </>
    );
  }
  if (query.isError) {
    return <ErrorAlert error={query.error} retry={() => void query.refetch()} />;
  }
  return loading ?? <LoadingRows />;
}
