import { Button, Field, HStack, Stack, Tag, Text, Textarea } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { LuPencil } from "react-icons/lu";
import { queryClient, type Schemas } from "src/api/client";
import { ErrorAlert } from "src/components/ErrorAlert";
import { changedTags, ownTags, readTags, writableTags, writeTags } from "src/components/tags";
import { formatList } from "src/format";

type Tags = Readonly<Record<string, string>>;

/** What people wrote of something, and their tags if it has any; to be changed by those who may. */
export function Notes({
  note,
  tags: all,
  written,
  mayEdit,
  onSave,
}: {
  note: string;
  tags?: Tags;
  written?: ReactNode;
  mayEdit: boolean;
  onSave: (change: Schemas["NoteRequest"]) => Promise<unknown>;
}) {
  const [editing, setEditing] = useState(false);
  const tags = ownTags(all ?? {});
  const things = all ? "note and tags" : "note";
  if (editing) {
    return <Editor note={note} tags={all && tags} onSave={onSave} onClose={() => setEditing(false)} />;
  }
  return (
    <HStack
      gap={2}
      wrap="wrap"
      align="flex-start"
      fontSize="sm"
      role="group"
      aria-label={all ? "Note and tags" : "Note"}
    >
      {note && (
        <Text whiteSpace="pre-wrap" wordBreak="break-word" width="full">
          {note}
        </Text>
      )}
      {note && written}
      {Object.entries(tags).map(([name, value]) => (
        <Tag.Root key={name} size="sm" maxW="full">
          <Tag.Label>{value ? `${name}: ${value}` : name}</Tag.Label>
        </Tag.Root>
      ))}
      {mayEdit && (
        <Button size="2xs" variant="outline" onClick={() => setEditing(true)}>
          <LuPencil />
          {note || Object.keys(tags).length > 0 ? `Edit ${things}` : all ? "Add a note or tags" : "Add a note"}
        </Button>
      )}
    </HStack>
  );
}

function Editor({
  note,
  tags: given,
  onSave,
  onClose,
}: {
  note: string;
  tags: Tags | undefined;
  onSave: (change: Schemas["NoteRequest"]) => Promise<unknown>;
  onClose: () => void;
}) {
  const tags = given ?? {};
  const [text, setText] = useState(note);
  const writable = writableTags(tags);
  const others = Object.keys(tags).filter((name) => !(name in writable));
  const [lines, setLines] = useState(writeTags(writable));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const save = async () => {
    setBusy(true);
    setError(null);
    try {
      await onSave({ note: text === note ? null : text, tags: changedTags(writable, readTags(lines)) });
      await queryClient.invalidateQueries();
      onClose();
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Stack gap={2} maxW="40rem">
      <Field.Root>
        <Field.Label>Note</Field.Label>
        <Textarea value={text} rows={3} maxLength={5000} onChange={(event) => setText(event.target.value)} />
      </Field.Root>
      {given && (
        <Field.Root>
          <Field.Label>Tags, one per line</Field.Label>
          <Textarea
            value={lines}
            rows={3}
            placeholder="team: pricing"
            onChange={(event) => setLines(event.target.value)}
          />
          {others.length > 0 && (
            <Field.HelperText>
              Kept unchanged, because they do not fit on one line: {formatList(others)}.
            </Field.HelperText>
          )}
        </Field.Root>
      )}
      <ErrorAlert error={error} />
      <HStack>
        <Button size="xs" colorPalette="brand" loading={busy} onClick={() => void save()}>
          Save
        </Button>
        <Button size="xs" variant="outline" disabled={busy} onClick={onClose}>
          Cancel
        </Button>
      </HStack>
    </Stack>
  );
}
