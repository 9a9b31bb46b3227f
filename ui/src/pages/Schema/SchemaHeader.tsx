import { Badge, HStack, Text } from "@chakra-ui/react";
import { LuPencil } from "react-icons/lu";
import { AppLink, Choice, StateBadge, Time } from "src/components";
import { plural } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";
import type { SchemaSummary, ValidationEntry } from "src/pages/Schema/queries";
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
          </Text>
          <Verdict validation={latest} />
        </HStack>
      )}
    </HStack>
  );
}

/** How many features a validation found anomalous; where its report is gone, how many errors and warnings. */
export function Verdict({ validation }: { validation: ValidationEntry }) {
  const { errors, warnings, features_total: features } = validation;
  if (errors === null) {
    return null;
  }
  if (features > 0) {
    return <StateBadge state={errors > 0 ? "error" : "warning"}>{plural(features, "anomalous feature")}</StateBadge>;
  }
  return (
    <>
      {errors > 0 && <StateBadge state="error">{plural(errors, "error")}</StateBadge>}
      {Boolean(warnings) && <StateBadge state="warning">{plural(warnings ?? 0, "warning")}</StateBadge>}
      {errors === 0 && !warnings && <StateBadge state="ok">no anomalies</StateBadge>}
    </>
  );
}
