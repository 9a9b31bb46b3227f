import { Box, DataList, Flex, HStack, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { api } from "src/api/client";
import { AppLink, CodeBlock, QueryView } from "src/components";
import { countOf, formatNumber } from "src/format";
import { measureName } from "src/measures";
import { Found } from "src/pages/Schema/FeatureTable";
import type { SchemaFeature, SchemaSummary, ValidationEntry } from "src/pages/Schema/queries";
import { SidePanel } from "src/pages/Schema/SidePanel";
import { Value } from "src/pages/Schema/Value";
import { aspectName, form, typeName } from "src/pages/Schema/words";
import { pagePath } from "src/routes";

const SHOWN = 300;

interface Props {
  dagId: string;
  schema: SchemaSummary;
  version: number | null;
  feature: SchemaFeature;
  environments: readonly string[];
  anomaly: ValidationEntry["features"][number] | undefined;
  onClose: () => void;
}

/** All that the schema says of a feature. */
export function FeaturePanel({ dagId, schema, version, feature, environments, anomaly, onClose }: Props) {
  const detail = api.useQuery("get", "/api/dags/{dag_id}/schemas/{name}/feature", {
    params: {
      path: { dag_id: dagId, name: schema.name },
      query: { feature: feature.name, ...(version === null ? {} : { version }) },
    },
  });
  const facts: [string, string][] = [
    ["Type", typeName(feature.type)],
    ["Presence", feature.presence || "optional"],
    ["Values per row", form(feature)],
    ["Domain", feature.domain?.text ?? "any"],
    ["Environments", feature.environments.join(", ") || (environments.length ? "none" : "none declared")],
    ...comparator("Drift", feature.drift),
    ...comparator("Skew", feature.skew),
    ...feature.constraints.map(({ name, text }): [string, string] => [aspectName(name), text]),
  ];
  return (
    <SidePanel label={`Feature ${feature.name}`} title={feature.name} onClose={onClose}>
      <HStack gap={4} fontSize="sm" mb={3}>
        <AppLink to={pagePath("data", dagId, { feature: feature.name })}>Data of this feature</AppLink>
        <AppLink to={pagePath("skew", dagId, { feature: feature.name })}>Skew of this feature</AppLink>
      </HStack>
      {anomaly && (
        <Box mb={3} fontSize="sm">
          <Text color="fg.muted">Last validation, {anomaly.splits.join(", ")}</Text>
          <Found anomaly={anomaly} />
        </Box>
      )}
      <DataList.Root orientation="horizontal" size="sm" gap={1.5} mb={4}>
        {facts.map(([name, text]) => (
          <DataList.Item key={`${name} ${text}`}>
            <DataList.ItemLabel minW="28">{name}</DataList.ItemLabel>
            <DataList.ItemValue wordBreak="break-word">{text}</DataList.ItemValue>
          </DataList.Item>
        ))}
      </DataList.Root>
      <QueryView query={detail}>
        {({ values, text }) => (
          <>
            {values.length > 0 && <DomainValues values={values} />}
            <CodeBlock label="the schema of this feature" code={text} maxHeight="20rem" />
          </>
        )}
      </QueryView>
    </SidePanel>
  );
}

const comparator = (name: string, by: Record<string, number>): [string, string][] =>
  Object.entries(by).map(([measure, value]) => [name, `${measureName(measure)} above ${formatNumber(value)}`]);

function DomainValues({ values }: { values: readonly string[] }) {
  const [search, setSearch] = useState("");
  const found = values.filter((value) => value.toLowerCase().includes(search.toLowerCase()));
  return (
    <Box mb={4}>
      <Flex mb={2} align="center" gap={2}>
        <Text fontSize="sm" fontWeight="semibold" flex={1}>
          {countOf(found.length, values.length, "value")}
        </Text>
        {values.length > 20 && (
          <Input
            size="xs"
            width="40"
            placeholder="Search values"
            aria-label="Search values"
            value={search}
            onChange={(event) => setSearch(event.target.value)}
          />
        )}
      </Flex>
      <Flex wrap="wrap" gap={1} maxHeight="40" overflowY="auto" tabIndex={0}>
        {found.slice(0, SHOWN).map((value) => (
          <Value key={value}>{value}</Value>
        ))}
        {found.length > SHOWN && <Text fontSize="xs">and {formatNumber(found.length - SHOWN)} more</Text>}
      </Flex>
    </Box>
  );
}
