import { useQueries } from "@tanstack/react-query";
import { api, client, type Schemas } from "src/api/client";

/** A page of an extension that has a bundle, and is shown somewhere. */
export type ExtensionPage = Schemas["ExtensionEntry"] & { bundle: string };

const NONE: Schemas["ExtensionEntry"][] = [];

function useEntries() {
  const { data, isPending } = api.useQuery("get", "/api/extensions", undefined, {
    staleTime: Number.POSITIVE_INFINITY,
  });
  return { entries: data ?? NONE, isPending };
}

/** Whether the server has an extension's pages, by the name under which they are registered; none until it has answered. */
export function useExtensions(): (name: string) => boolean {
  const { entries } = useEntries();
  return (name) => entries.some((each) => each.name === name);
}

/** The pages of extensions at a place; none until the server has answered. */
export function useExtensionPages(destination: ExtensionPage["destination"]) {
  const { entries, isPending } = useEntries();
  const pages = entries.filter(
    (each): each is ExtensionPage => each.destination === destination && each.bundle !== null,
  );
  return { pages, isPending };
}

/** The page that shows artifacts of a kind. */
export function useArtifactPage(kind: string): ExtensionPage | undefined {
  return useEntries().entries.find((each): each is ExtensionPage => each.kind === kind && each.bundle !== null);
}

/** The tabs of a model: those of all models, and those whose route says that they are this one's, as far as it has. */
export function useModelPages(dagId: string, model: string) {
  const { pages, isPending } = useExtensionPages("model");
  const params = { path: { dag_id: dagId, model } };
  const answers = useQueries({
    queries: pages.map(({ applies }) => ({
      queryKey: ["applies", applies, params.path],
      queryFn: async () => (await client.GET(applies as "/api/extensions", { params: params as object })).data,
      enabled: applies !== null,
      staleTime: Number.POSITIVE_INFINITY,
    })),
  });
  return {
    pages: pages.filter(({ applies }, place) => applies === null || (answers[place]?.data as unknown) === true),
    isPending: isPending || answers.some(({ isLoading }) => isLoading),
  };
}
