import { Text } from "@chakra-ui/react";
import { client } from "src/api/client";
import { Notes } from "src/components/Notes";
import { Time } from "src/components/Time";
import type { Entry, RefusedCandidate } from "src/pages/Models/history";
import { noteOnDecision, noteOnRefusal, type WrittenNote } from "src/pages/Models/noteTags";
import { type Decision, type ModelDetail, useNotedRefusals, useVersions } from "src/pages/Models/queries";
import { titleOf } from "src/pages/Models/words";

/** The notes that were added to a decision, or to each of a rollout; to be edited by those who may decide. */
export function DecisionNotes({ dagId, detail, entry }: { dagId: string; detail: ModelDetail; entry: Entry }) {
  if (entry.kind === "refused") {
    return entry.candidate.fingerprint && <OfRefusal candidate={entry.candidate} mayEdit={detail.may_change} />;
  }
  return (
    entry.kind === "decisions" &&
    entry.group.map((decision, index) => (
      <OfDecision key={decision.at} dagId={dagId} detail={detail} decision={decision} newest={index === 0} />
    ))
  );
}

function OfDecision({
  dagId,
  detail: { name, may_change },
  decision,
  newest,
}: {
  dagId: string;
  detail: ModelDetail;
  decision: Decision;
  newest: boolean;
}) {
  const { data, error } = useVersions(dagId, name);
  const version = data?.entries.find((each) => each.version === decision.version);
  const note = noteOnDecision(version?.tags ?? {}, decision.at);
  const { version: number, at: decided_at } = decision;
  const path = { dag_id: dagId, model: name, version: number, decided_at };
  const save = (text: string) =>
    client.POST("/api/dags/{dag_id}/models/{model}/versions/{version}/decisions/{decided_at}/note", {
      params: { path },
      body: { note: text },
    });
  if (error || data?.problems.length) {
    return newest && <NotKnown why={error ? String(error) : data?.problems[0]} />;
  }
  // In a rollout, what is new is said of its newest decision.
  const shown = version && (note || newest);
  return (
    shown && <OneNote note={note} about={newest ? undefined : titleOf(decision)} mayEdit={may_change} onSave={save} />
  );
}

function OfRefusal({ candidate: { fingerprint, judged }, mayEdit }: { candidate: RefusedCandidate; mayEdit: boolean }) {
  const { data, error } = useNotedRefusals(judged.dag_id);
  const params = { path: { dag_id: judged.dag_id } };
  const save = async (note: string) => {
    const query = { search: `tags.\`hops.fingerprint\` = '${fingerprint}'`, limit: 1 };
    const found = await client.GET("/api/dags/{dag_id}/training-runs", { params: { ...params, query } });
    const run = found.data?.runs[0];
    if (run === undefined) {
      throw new Error(`there is no training run of this candidate in the pipeline ${judged.dag_id}`);
    }
    await client.POST("/api/dags/{dag_id}/training-runs/{training_id}/decision-note", {
      params: { path: { ...params.path, training_id: run.run_id } },
      body: { note },
    });
  };
  if (error) {
    return <NotKnown why={String(error)} />;
  }
  return data && <OneNote note={noteOnRefusal(data.runs, fingerprint)} mayEdit={mayEdit} onSave={save} />;
}

function OneNote({
  note,
  about,
  mayEdit,
  onSave,
}: {
  note: WrittenNote | null;
  about?: string;
  mayEdit: boolean;
  onSave: (note: string) => Promise<unknown>;
}) {
  const written = note && (
    <Text fontSize="xs" color="fg.muted">
      {about && `On “${about}”, `}
      {note.by}, <Time at={note.at} />
    </Text>
  );
  if (!note && !mayEdit) {
    return null;
  }
  const save = async ({ note: text }: { note: string | null }) => text !== null && onSave(text);
  return <Notes note={note?.text ?? ""} written={written} mayEdit={mayEdit} onSave={save} />;
}

function NotKnown({ why }: { why: string | null | undefined }) {
  return (
    <Text fontSize="xs" color="fg.muted" lineClamp={1} title={why ?? ""}>
      Notes cannot be read: {why}
    </Text>
  );
}
