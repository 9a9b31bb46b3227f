import { api } from "src/api/client";

/** Whether the server has an extension's pages, by the name under which they are registered; none until it has answered. */
export function useExtensions(): (name: string) => boolean {
  const { data } = api.useQuery("get", "/api/extensions", undefined, { staleTime: Number.POSITIVE_INFINITY });
  return (name) => data?.includes(name) ?? false;
}
