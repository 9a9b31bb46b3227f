import { Badge, HStack, Text } from "@chakra-ui/react";
import { LuPencil } from "react-icons/lu";
import { AppLink, Choice, StateBadge, Time } from "src/components";
import { plural } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";
import type { SchemaSummary, ValidationEntry } from "src/pages/Schema/queries";
import { foundInWords } from "src/pages/Schema/words";
import { schemaPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

interface Props {
  schemas: readonly SchemaSummary[];
  schema: SchemaSummary;
  latest: ValidationEntry | undefined;
}

/** Which schema is in force, since when, and what the last validation said. */
export function SchemaHeader({ schemas, schema, latest }: Props) {
  const dagId = useDagId();
  const [, setName] = useQueryParam("schema", schemas[0]?.name);
  const current = schema.versions.find((version) => version.in_force);
  return (
    <HStack gap={3} mb={3} wrap="wrap" fontSize="sm">
      {schemas.length > 1 ? (
        <Choice
          quiet
          size="sm"
          label="Schema"
          value={schema.name}
          values={schemas.map(({ name }) => ({ value: name }))}
          onChange={setName}
        />
      ) : (
        <Text fontWeight="semibold" fontSize="md">
          {schema.name}
        </Text>
      )}
      {current && (
        <>
          <Badge colorPalette="brand" variant="subtle" size="md">
            version {current.version}
          </Badge>
          <Text color="fg.muted">
            {current.approved_by
              ? `approved by ${current.approved_by} `
              : `${current.note.split(" ")[0] || "recorded"} `}
            <Time at={current.recorded_at} />
          </Text>
        </>
      )}
      {schema.is_edited && (
        <Badge colorPalette="warning" variant="subtle" size="md">
          <LuPencil aria-hidden /> edited by hand; the next run records it as a version
        </Badge>
      )}
      <Text color="fg.muted">{plural(schema.features, "feature")}</Text>
      {latest && (
        <HStack gap={2} ml="auto">
          <Text color="fg.muted">
            <AppLink to={schemaPath(dagId, { artifact: latest.address })}>Last validation</AppLink>{" "}
            <Time at={latest.run_after} />
            {current && latest.schema_version !== null && latest.schema_version !== current.version && (
              <>
                {" "}
                against version {latest.schema_version}; there is none against version {current.version} yet
              </>
            )}
          </Text>
          <Verdict validation={latest} />
        </HStack>
      )}
    </HStack>
  );
}

/** How many features a validation found anomalous; where its report is gone, how many errors and warnings. */
export function Verdict({ validation }: { validation: ValidationEntry }) {
  const { errors, warnings, features_total: features, drifted_total: drifted } = validation;
  if (errors === null) {
    return null;
  }
  const state = errors ? "error" : warnings || drifted ? "warning" : "ok";
  const isCounted = features > 0 || state === "ok";
  const words = [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ");
  return <StateBadge state={state}>{isCounted ? foundInWords(features - drifted, drifted) : words}</StateBadge>;
}
