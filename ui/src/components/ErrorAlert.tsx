import { Button } from "@chakra-ui/react";
import { ApiError } from "src/api/client";
import { Notice } from "src/components/Notice";

const TITLES: Record<number, string> = {
  403: "You do not have permission to see this",
  404: "Not found",
  409: "Something changed in the meantime",
  410: "This has been deleted",
  422: "The request cannot be answered",
  502: "Something behind this page cannot be reached or read",
};

/** What went wrong, in the API's words, and a button to try again where that can help. */
export function ErrorAlert({ error, retry }: { error: unknown; retry?: () => void }) {
  if (error === null || error === undefined) {
    return null;
  }
  const status = error instanceof ApiError ? error.status : undefined;
  // What `fetch` throws where nothing answers.
  const notReached = error instanceof TypeError ? "Could not reach the API server" : "This part of the page failed";
  const title = status === undefined ? notReached : (TITLES[status] ?? `The API failed (${status})`);
  return (
    <Notice
      status={status === 404 || status === 410 ? "warning" : "error"}
      alignItems="flex-start"
      title={title}
      action={
        retry &&
        (status === undefined || status >= 500) && (
          <Button size="xs" variant="outline" onClick={retry}>
            Try again
          </Button>
        )
      }
    >
      {error instanceof Error ? error.message : String(error)}
    </Notice>
  );
}
