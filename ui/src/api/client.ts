/** The plugin's web API, typed from its OpenAPI document. */

import { QueryClient } from "@tanstack/react-query";
import createClient, { type Middleware } from "openapi-fetch";
import createQueryClient from "openapi-react-query";
import type { components, paths } from "src/api/schema";
import { basePath } from "src/host";

/** The API's types by name: `Schemas["PipelineModel"]`. */
export type Schemas = components["schemas"];

/** An answer that is none: the HTTP status and what the API said in words. */
export class ApiError extends Error {
  readonly status: number;

  constructor(status: number, detail: string) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
  }
}

function inWords(detail: unknown): string {
  if (typeof detail === "string") {
    return detail;
  }
  if (Array.isArray(detail)) {
    // FastAPI's own checks: which parameter, and what is wrong with it.
    return detail
      .map(({ loc, msg }: { loc?: unknown[]; msg?: string }) => `${loc?.slice(1).join(".")}: ${msg}`)
      .join("; ");
  }
  return JSON.stringify(detail);
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { detail } = JSON.parse(text) as { detail?: unknown };
    return new ApiError(response.status, detail === undefined ? text : inWords(detail));
  } catch {
    return new ApiError(response.status, text.slice(0, 500) || response.statusText);
  }
}

function logIn(): void {
  const { pathname, search, hash } = window.location;
  const next = new URLSearchParams({ next: pathname + search + hash });
  window.location.replace(`${basePath()}api/v2/auth/login?${next}`);
}

/** Milliseconds that the last answer of each route took. */
const took = new Map<string, number>();

/** How long to wait before asking again: so long, or five times what the answer took, so that a busy server is spared. */
export const refetchAfter = (ms: number, { queryKey }: { queryKey: readonly unknown[] }): number =>
  Math.max(ms, 5 * (took.get(String(queryKey[1])) ?? 0));

const asked = new WeakMap<Request, number>();

const failures: Middleware = {
  onRequest({ request }) {
    asked.set(request, performance.now());
  },
  async onResponse({ request, schemaPath, response }) {
    took.set(schemaPath, performance.now() - (asked.get(request) ?? Number.NaN));
    if (response.ok) {
      return;
    }
    const error = await errorOf(response);
    // The host's own client does the same: the session has ended.
    if (error.status === 401 || (error.status === 403 && error.message === "Invalid JWT token")) {
      logIn();
    }
    throw error;
  },
};

/** Calls of the API: `await client.POST("/api/…", { params, body })`. Rejects with an {@link ApiError}. */
export const client = createClient<paths>({ baseUrl: `${basePath()}hops`, credentials: "same-origin" });
client.use(failures);

/** The address of what the browser itself fetches: a download, a picture. */
export const apiAddress = (...path: readonly string[]): string =>
  `${basePath()}hops/api/${path.map(encodeURIComponent).join("/")}`;

/** The API's queries as hooks: `api.useQuery("get", "/api/…", { params })`; and `api.useMutation("post", …)`. */
export const api = createQueryClient(client);

/** Ours alone: the host has its own. It lives as long as the window. */
export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      refetchOnWindowFocus: false,
      retry: (failed, error) => failed < 2 && !(error instanceof ApiError && error.status < 500),
    },
  },
});
