import { Button, Checkbox, Field, HStack, IconButton, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { LuBookmark, LuPencil, LuTrash2 } from "react-icons/lu";
import { useLocation } from "react-router-dom";
import { api, client, queryClient, type Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { ErrorAlert } from "src/components/ErrorAlert";
import { PlainDialog } from "src/components/PlainDialog";
import { QueryView } from "src/components/QueryView";
import { ROOT } from "src/routes";
import { savedAddress } from "src/shell/savedAddress";

type View = Schemas["SavedView"];
const VIEWS = "/api/dags/{dag_id}/views";

/** Names for addresses: what a page shows now can be saved, and found again by all or by its author. */
export function SavedViews({ dagId }: { dagId: string }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button size="xs" variant="ghost" onClick={() => setOpen(true)}>
        <LuBookmark /> Views
      </Button>
      <PlainDialog open={open} title={`Saved views of ${dagId}`} onClose={() => setOpen(false)}>
        <Views dagId={dagId} onFollow={() => setOpen(false)} />
      </PlainDialog>
    </>
  );
}

function Views({ dagId, onFollow }: { dagId: string; onFollow: () => void }) {
  const query = api.useQuery("get", VIEWS, { params: { path: { dag_id: dagId } } });
  const [error, setError] = useState<unknown>(null);
  const attempt = async (change: () => Promise<unknown>): Promise<boolean> => {
    setError(null);
    try {
      await change();
      return true;
    } catch (failure) {
      setError(failure);
      return false;
    } finally {
      await queryClient.invalidateQueries({ queryKey: ["get", VIEWS] });
    }
  };
  return (
    <QueryView query={query}>
      {({ views, may_save }) => (
        <>
          {views.length === 0 && <Text color="fg.muted">None yet.</Text>}
          {views.map((view) => (
            <Entry key={view.id} dagId={dagId} view={view} mayChange={may_save} attempt={attempt} onFollow={onFollow} />
          ))}
          {may_save ? (
            <SaveForm dagId={dagId} attempt={attempt} />
          ) : (
            <Text mt={4} fontSize="sm" color="fg.muted">
              To save a view, you need permission to trigger this pipeline.
            </Text>
          )}
          <ErrorAlert error={error} />
        </>
      )}
    </QueryView>
  );
}

type Attempt = (change: () => Promise<unknown>) => Promise<boolean>;

function Entry({
  dagId,
  view,
  mayChange,
  attempt,
  onFollow,
}: {
  dagId: string;
  view: View;
  mayChange: boolean;
  attempt: Attempt;
  onFollow: () => void;
}) {
  const [name, setName] = useState<string | null>(null);
  const params = { path: { dag_id: dagId, view_id: view.id } };
  const rename = async () => {
    if (await attempt(() => client.PUT(`${VIEWS}/{view_id}`, { params, body: { name: name ?? "" } }))) {
      setName(null);
    }
  };
  if (name !== null) {
    return (
      <HStack
        as="form"
        py={1}
        onSubmit={(event) => {
          event.preventDefault();
          void rename();
        }}
      >
        <Input
          size="xs"
          aria-label="New name"
          value={name}
          maxLength={100}
          onChange={(event) => setName(event.target.value)}
        />
        <Button size="xs" type="submit" disabled={!name.trim()}>
          Rename
        </Button>
        <Button size="xs" variant="outline" onClick={() => setName(null)}>
          Cancel
        </Button>
      </HStack>
    );
  }
  return (
    <HStack py={1} gap={2} fontSize="sm">
      <AppLink to={savedAddress(dagId, view)} onClick={onFollow} flex="1" minW={0} wordBreak="break-word">
        {view.name}
      </AppLink>
      <Text color="fg.muted" flexShrink={0} fontSize="xs">
        {view.page} · {view.shared ? `shared by ${view.by}` : "yours"}
      </Text>
      {mayChange && (
        <>
          <IconButton size="2xs" variant="ghost" aria-label={`Rename ${view.name}`} onClick={() => setName(view.name)}>
            <LuPencil />
          </IconButton>
          <IconButton
            size="2xs"
            variant="ghost"
            aria-label={`Delete ${view.name}`}
            onClick={() => void attempt(() => client.DELETE(`${VIEWS}/{view_id}`, { params }))}
          >
            <LuTrash2 />
          </IconButton>
        </>
      )}
    </HStack>
  );
}

function SaveForm({ dagId, attempt }: { dagId: string; attempt: Attempt }) {
  const { pathname, search } = useLocation();
  const [name, setName] = useState("");
  const [shared, setShared] = useState(false);
  const save = async () => {
    const page = pathname.slice(ROOT.length + 1).replace(/\/$/, "");
    const body = { name, page, query: search.slice(1), shared };
    if (await attempt(() => client.POST(VIEWS, { params: { path: { dag_id: dagId } }, body }))) {
      setName("");
    }
  };
  return (
    <HStack
      as="form"
      mt={4}
      gap={3}
      align="flex-end"
      wrap={{ base: "wrap", md: "nowrap" }}
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <Field.Root>
        <Field.Label>Save the current view as</Field.Label>
        <Input size="sm" value={name} maxLength={100} onChange={(event) => setName(event.target.value)} />
      </Field.Root>
      <Checkbox.Root size="sm" checked={shared} onCheckedChange={({ checked }) => setShared(checked === true)} mb={2}>
        <Checkbox.HiddenInput />
        <Checkbox.Control />
        <Checkbox.Label whiteSpace="nowrap">for everybody</Checkbox.Label>
      </Checkbox.Root>
      <Button size="sm" type="submit" colorPalette="brand" disabled={!name.trim()}>
        Save
      </Button>
    </HStack>
  );
}
