import { useRef } from "react";
import { client, queryClient } from "src/api/client";
import type { ModelDetail } from "src/pages/Models/queries";

/** A name for one decision: sent twice, it is decided once. `randomUUID` is only there over HTTPS. */
function newRequestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What the dialogs of decisions take. */
export type DecisionProps = {
  dagId: string;
  detail: ModelDetail;
  onClose: () => void;
  /** Whether the model server does not respond. */
  isAway: boolean;
};

/** Sends decisions on a model: the same one, sent again after a failure, is decided once. */
export function useDecision(dagId: string, model: string) {
  const sent = useRef({ what: "", id: "" });
  const params = { path: { dag_id: dagId, model } };
  type Sent = { reason: string; request_id: string };
  const decide = async (what: unknown[], reason: string, post: (body: Sent) => Promise<unknown>) => {
    const text = JSON.stringify(what);
    if (sent.current.what !== text) {
      sent.current = { what: text, id: newRequestId() };
    }
    await post({ reason, request_id: sent.current.id });
    await queryClient.invalidateQueries();
  };
  return {
    promote: (version: number, reason: string) =>
      decide(["promote", version], reason, (body) =>
        client.POST("/api/dags/{dag_id}/models/{model}/promote", { params, body: { version, ...body } }),
      ),
    replace: (fingerprint: string, reason: string) =>
      decide(["replace", fingerprint], reason, (body) =>
        client.POST("/api/dags/{dag_id}/models/{model}/replace", { params, body: { fingerprint, ...body } }),
      ),
    setTraffic: (percents: Record<string, number>, reason: string) =>
      decide(["traffic", percents], reason, (body) =>
        client.POST("/api/dags/{dag_id}/models/{model}/traffic", { params, body: { percents, ...body } }),
      ),
    setOwners: (owners: string[], reason: string) =>
      decide(["owners", owners], reason, (body) =>
        client.POST("/api/dags/{dag_id}/models/{model}/owners", { params, body: { owners, ...body } }),
      ),
    rollBack: (toVersion: number, ifAway: boolean, reason: string) =>
      decide(["roll back", toVersion, ifAway], reason, (body) =>
        client.POST("/api/dags/{dag_id}/models/{model}/roll_back", {
          params,
          body: { to_version: toVersion, if_away: ifAway, ...body },
        }),
      ),
  };
}
