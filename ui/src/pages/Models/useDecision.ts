import { useRef } from "react";
import { client, queryClient } from "src/api/client";

/** A name for one decision: sent twice, it is decided once. `randomUUID` is only there over HTTPS. */
function newRequestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Sends decisions on a model: the same one, sent again after a failure, is decided once. */
export function useDecision(dagId: string, model: string) {
  const sent = useRef({ what: "", id: "" });
  const idOf = (...what: unknown[]): string => {
    const text = JSON.stringify(what);
    if (sent.current.what !== text) {
      sent.current = { what: text, id: newRequestId() };
    }
    return sent.current.id;
  };
  const params = { path: { dag_id: dagId, model } };
  const done = () => queryClient.invalidateQueries();
  return {
    promote: async (version: number, reason: string) => {
      const body = { version, reason, request_id: idOf("promote", version) };
      await client.POST("/api/dags/{dag_id}/models/{model}/promote", { params, body });
      await done();
    },
    setTraffic: async (percents: Record<string, number>, reason: string) => {
      const body = { percents, reason, request_id: idOf("traffic", percents) };
      await client.POST("/api/dags/{dag_id}/models/{model}/traffic", { params, body });
      await done();
    },
    rollBack: async (toVersion: number, reason: string) => {
      const body = { to_version: toVersion, reason, request_id: idOf("roll back", toVersion) };
      await client.POST("/api/dags/{dag_id}/models/{model}/roll_back", { params, body });
      await done();
    },
  };
}
