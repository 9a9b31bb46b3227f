import { Box, Button, Field, HStack, List, Text, Textarea } from "@chakra-ui/react";
import { useState } from "react";
import { ConfirmDialog } from "src/components/ConfirmDialog";
import { ERROR } from "src/components/colors";
import { ErrorAlert } from "src/components/ErrorAlert";
import { QueryView } from "src/components/QueryView";
import { plural } from "src/format";
import { type SchemaCheck, useCheck, useReview } from "src/pages/Schema/queries";
import { type ArtifactRef, pathOf } from "src/routes";

/** Changes that are listed before the schema is approved; the version's comparison has them all. */
const MANY = 30;

/** The proposed schema as text: to be changed, checked, and approved. */
export function EditDialog({
  address,
  onApprove,
  onClose,
}: {
  address: ArtifactRef;
  onApprove: (reason: string, text: string) => Promise<unknown>;
  onClose: () => void;
}) {
  const review = useReview(address);
  const check = useCheck();
  const [edited, setEdited] = useState<string | null>(null);
  const text = edited ?? review.data?.text ?? "";
  const change = (value: string) => {
    setEdited(value);
    check.reset();
  };
  return (
    <ConfirmDialog
      open
      size="xl"
      title="Edit the proposed schema"
      confirmLabel="Approve this schema"
      ready={text.trim() !== ""}
      onConfirm={(reason) => onApprove(reason, text)}
      onClose={onClose}
    >
      <QueryView query={review}>
        {() => (
          <>
            <Field.Root>
              <Field.Label>Schema, as protobuf text</Field.Label>
              <Textarea
                value={text}
                onChange={(event) => change(event.target.value)}
                rows={18}
                fontFamily="mono"
                fontSize="xs"
                spellCheck={false}
              />
            </Field.Root>
            <HStack>
              <Button
                size="sm"
                variant="outline"
                loading={check.isPending}
                onClick={() => check.mutate({ params: { path: pathOf(address) }, body: { text } })}
              >
                Check
              </Button>
              <Text fontSize="sm" color="fg.muted">
                Shows what the edit changes, and whether this data passes.
              </Text>
            </HStack>
            <ErrorAlert error={check.error} />
            {check.data && <Checked check={check.data} />}
          </>
        )}
      </QueryView>
    </ConfirmDialog>
  );
}

function Checked({ check: { changes, anomalies } }: { check: SchemaCheck }) {
  const texts = changes.features.flatMap(({ name, texts }) => texts.map((text) => ({ name, text })));
  return (
    <Box role="status" fontSize="sm">
      <Text fontWeight="medium">{texts.length === 0 ? "No changes." : "Changes:"}</Text>
      <Listed lines={texts.map(({ name, text }) => (name ? `${name}: ${text}` : text))} />
      {anomalies === null ? (
        <Text>The statistics of this data have been deleted, so it could not be validated.</Text>
      ) : (
        <Text fontWeight="medium" color={anomalies.length === 0 ? "fg.success" : ERROR}>
          {anomalies.length === 0
            ? "This data has no anomalies under this schema."
            : `This data still has ${plural(anomalies.length, "anomaly")} under this schema:`}
        </Text>
      )}
      <Listed
        lines={(anomalies ?? []).map((each) => `${each.feature || "data set"} in ${each.split}: ${each.summary}`)}
      />
    </Box>
  );
}

function Listed({ lines }: { lines: readonly string[] }) {
  return (
    <List.Root ps={5} mb={2}>
      {lines.slice(0, MANY).map((line) => (
        <List.Item key={line} wordBreak="break-word">
          {line}
        </List.Item>
      ))}
      {lines.length > MANY && <List.Item>and {lines.length - MANY} more</List.Item>}
    </List.Root>
  );
}
