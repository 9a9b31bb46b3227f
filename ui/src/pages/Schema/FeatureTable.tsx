import { Badge, HStack, Icon, Text } from "@chakra-ui/react";
import { type ReactNode, useMemo } from "react";
import { LuTriangleAlert, LuX } from "react-icons/lu";
import { ChoiceFilter, type Column, column, DataTable, FilterBar, SearchInput } from "src/components";
import { countOf, plural } from "src/format";
import { useQueryList, useQueryParam } from "src/hooks/useQueryState";
import type { AnomalousFeature, SchemaDetail, SchemaFeature, SchemaSummary } from "src/pages/Schema/queries";
import { Value } from "src/pages/Schema/Value";
import { aspectName, elsewhere, form, presence, thresholds, typeName } from "src/pages/Schema/words";

type Anomalies = ReadonlyMap<string, AnomalousFeature>;

/** What can be looked for besides a name and a type. */
const TRAITS: readonly { value: string; has: (feature: SchemaFeature, anomalies: Anomalies) => boolean }[] = [
  { value: "anomalous", has: ({ name }, anomalies) => anomalies.get(name)?.drifted === false },
  { value: "drifted", has: ({ name }, anomalies) => anomalies.get(name)?.drifted === true },
  { value: "optional", has: ({ required }) => !required },
  { value: "with a domain", has: ({ domain }) => domain !== null },
  { value: "with a comparator", has: ({ drift, skew }) => Object.keys({ ...drift, ...skew }).length > 0 },
  { value: "with other constraints", has: ({ constraints }) => constraints.length > 0 },
  { value: "deprecated", has: ({ deprecated }) => deprecated },
];

interface Props {
  schema: SchemaSummary;
  detail: SchemaDetail;
  /** Of the last validation. */
  anomalous: readonly AnomalousFeature[];
  opened: string | null;
  onOpen: (name: string) => void;
  /** Right of the filters. */
  end: ReactNode;
}

/** A row a feature: all that the schema says of it, and whether the last validation found it anomalous. */
export function FeatureTable({ schema, detail, anomalous, opened, onOpen, end }: Props) {
  const [search] = useQueryParam("search");
  const [types] = useQueryList("type");
  const [traits] = useQueryList("with");
  const anomalies: Anomalies = useMemo(() => new Map(anomalous.map((each) => [each.feature, each])), [anomalous]);
  const rows = useMemo(() => {
    const wanted = TRAITS.filter(({ value }) => traits.includes(value));
    const text = search.toLowerCase();
    return detail.features.filter(
      (feature) =>
        (feature.name.toLowerCase().includes(text) ||
          feature.domain?.values.some((value) => value.toLowerCase() === text)) &&
        (types.length === 0 || types.includes(typeName(feature.type))) &&
        wanted.every(({ has }) => has(feature, anomalies)),
    );
  }, [detail.features, search, types, traits, anomalies]);
  const columns = useMemo(
    () => makeColumns(schema, detail.environments, anomalies),
    [schema, detail.environments, anomalies],
  );
  const count = (has: (feature: SchemaFeature) => boolean) => detail.features.filter(has).length;
  const kinds = [...new Set(detail.features.map(({ type }) => typeName(type)))];
  return (
    <DataTable
      label="Features of the schema"
      rows={rows}
      rowKey={({ name }) => name}
      columns={columns}
      opened={opened}
      onOpen={({ name }) => onOpen(name)}
      maxHeight="68vh"
      toolbar={
        <FilterBar summary={countOf(rows.length, detail.features.length, "feature")}>
          <SearchInput placeholder="Search features" />
          <ChoiceFilter
            name="type"
            label="Type"
            choices={kinds.map((value) => ({ value, count: count(({ type }) => typeName(type) === value) }))}
          />
          <ChoiceFilter
            name="with"
            label="Traits"
            choices={TRAITS.map(({ value, has }) => ({ value, count: count((each) => has(each, anomalies)) }))}
          />
          {end}
        </FilterBar>
      }
    />
  );
}

export function makeColumns(
  schema: SchemaSummary,
  environments: readonly string[],
  anomalies: Anomalies,
): Column<SchemaFeature>[] {
  return [
    column("name", "Feature", {
      fixed: true,
      width: 200,
      minWidth: 130,
      value: ({ name }) => name,
      render: (feature) => <Name feature={feature} schema={schema} />,
    }),
    { key: "type", label: "Type", width: 80, value: ({ type }) => typeName(type) },
    column("presence", "Presence", {
      width: 100,
      help: "Share of the rows that must have a value",
      value: ({ min_fraction }) => min_fraction,
      render: presence,
    }),
    { key: "values", label: "Values", width: 85, help: "Values per row, or their shape", value: form },
    column("domain", "Domain", {
      width: 300,
      minWidth: 150,
      help: "Allowed values",
      value: ({ domain }) => domain?.size ?? (domain ? 0 : null),
      descendingFirst: true,
      render: ({ domain }) => <Domain domain={domain} />,
    }),
    column("environments", "Environments", {
      width: 125,
      minWidth: 110,
      help: "Environments that include the feature; empty means all",
      value: (feature) => elsewhere(feature, environments),
      render: (feature) => elsewhere(feature, environments) || <Text color="fg.muted">all</Text>,
    }),
    column("drift", "Drift", {
      width: 90,
      help: "Distance from an earlier span of data above which the feature has drifted",
      value: ({ drift }) => Object.values(drift)[0],
      render: ({ drift }) => thresholds(drift) || <Text color="fg.muted">–</Text>,
    }),
    column("skew", "Skew", {
      width: 90,
      help: "Distance between training data and requests above which the feature is skewed",
      value: ({ skew }) => Object.values(skew)[0],
      render: ({ skew }) => thresholds(skew) || <Text color="fg.muted">–</Text>,
    }),
    column("constraints", "Other constraints", {
      width: 160,
      optional: true,
      value: ({ constraints }) => constraints.length,
      render: ({ constraints }) => constraints.map(({ name, text }) => `${aspectName(name)} ${text}`).join(", "),
    }),
    column("anomaly", "Last validation", {
      width: 190,
      minWidth: 120,
      help: "What the last validation found for this feature",
      descendingFirst: true,
      value: ({ name }) => SEVERITY[anomalies.get(name)?.severity ?? ""] ?? 0,
      render: ({ name }) => <Found anomaly={anomalies.get(name)} />,
    }),
  ];
}

const SEVERITY: Record<string, number> = { error: 2, warning: 1 };

function Name({ feature, schema }: { feature: SchemaFeature; schema: SchemaSummary }) {
  const role = (["label", "key", "time"] as const).find((each) => schema[each] === feature.name);
  return (
    <HStack gap={2} minW={0}>
      <Text
        truncate
        fontWeight="medium"
        title={feature.name}
        textDecoration={feature.deprecated ? "line-through" : undefined}
      >
        {feature.name}
      </Text>
      {role && (
        <Badge size="xs" variant="outline">
          {role}
        </Badge>
      )}
      {feature.deprecated && (
        <Badge size="xs" variant="outline" colorPalette="warning">
          deprecated
        </Badge>
      )}
    </HStack>
  );
}

function Domain({ domain }: { domain: SchemaFeature["domain"] }) {
  if (domain === null) {
    return <Text color="fg.muted">any</Text>;
  }
  if (domain.size === null) {
    return domain.text;
  }
  return (
    <HStack gap={1} overflow="hidden">
      <Text
        minW="6"
        flexShrink={0}
        textAlign="end"
        fontVariantNumeric="tabular-nums"
        color="fg.muted"
        title={plural(domain.size, "value")}
      >
        {domain.size}
      </Text>
      {domain.values.map((value) => (
        <Value key={value}>{value}</Value>
      ))}
    </HStack>
  );
}

/** What a validation found of a feature, in short. */
export function Found({ anomaly }: { anomaly: AnomalousFeature | undefined }) {
  if (anomaly === undefined) {
    return <Text color="fg.muted">–</Text>;
  }
  const severe = anomaly.severity === "error";
  return (
    <HStack gap={1.5} colorPalette={severe ? "failed" : "warning"} minW={0}>
      <Icon color="colorPalette.solid" size="sm">
        {severe ? <LuX aria-label="error" /> : <LuTriangleAlert aria-label="warning" />}
      </Icon>
      <Text truncate title={anomaly.summaries.join("; ")}>
        {anomaly.summaries.join("; ")}
      </Text>
    </HStack>
  );
}
