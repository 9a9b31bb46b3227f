import { Button, CloseButton, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { useQuery } from "src/hooks/useQueryState";
import type { Column } from "src/pages/Data/dive/columns";
import { FeatureSelect } from "src/pages/Data/dive/FeatureSelect";
import { byValues, countValues, type Filter, filterValue, formatFilter, passing } from "src/pages/Data/dive/filters";
import { RangeFilter } from "src/pages/Data/dive/RangeFilter";
import { Section } from "src/pages/Data/dive/Section";
import { ValueFilter } from "src/pages/Data/dive/ValueFilter";

/** Which rows are shown: by ranges and values of features. The names of features that have no filter yet are in `open`. */
export function Filters({
  features,
  columns,
  rows,
  filters,
}: {
  features: readonly Schemas["RowsColumn"][];
  columns: ReadonlyMap<string, Column>;
  rows: number;
  filters: readonly Filter[];
}) {
  const [query, change] = useQuery();
  const opened = query.getAll("open").filter((name) => filters.every((filter) => filter.name !== name));
  const names = [...filters.map(({ name }) => name), ...opened];
  const set = (name: string, filter: Filter | null) => {
    // It keeps its place, with a filter or without.
    const others = filters.filter((each) => each.name !== name);
    const kept = filter ? filters.map((each) => (each.name === name ? filter : each)) : others;
    const next = filter && !kept.includes(filter) ? [...kept, filter] : kept;
    const open = filter ? opened.filter((each) => each !== name) : [...opened, name];
    change({ filter: next.map(formatFilter), open });
  };
  const close = (name: string) =>
    change({
      filter: filters.filter((each) => each.name !== name).map(formatFilter),
      open: opened.filter((each) => each !== name),
    });
  return (
    <Section
      title={filters.length ? `Filters (${filters.length})` : "Filters"}
      actions={
        names.length > 0 && (
          <Button size="2xs" variant="ghost" onClick={() => change({ filter: null, open: null })}>
            Clear
          </Button>
        )
      }
    >
      {names.map((name) => {
        const column = columns.get(name);
        const filter = filters.find((each) => each.name === name) ?? null;
        return (
          <Section
            key={name}
            title={name}
            actions={<CloseButton size="2xs" aria-label={`Remove the filter by ${name}`} onClick={() => close(name)} />}
          >
            {column ? (
              <OfFeature
                column={column}
                filter={filter}
                others={passing(rows, columns, filters, name)}
                onChange={(changed) => set(name, changed)}
              />
            ) : (
              <Text fontSize="xs" color="fg.muted">
                {features.some((feature) => feature.name === name) ? "Loading" : "These rows do not have this feature."}
              </Text>
            )}
          </Section>
        );
      })}
      <FeatureSelect
        label="Filter by"
        value=""
        none="Filter by …"
        width="full"
        features={features.filter(({ name }) => !names.includes(name))}
        onChange={(name) => name && change({ open: [...opened, name] })}
      />
    </Section>
  );
}

function OfFeature({
  column,
  filter,
  others,
  onChange,
}: {
  column: Column;
  filter: Filter | null;
  others: Uint8Array;
  onChange: (filter: Filter | null) => void;
}) {
  const { name } = column;
  if (!byValues(column)) {
    const range = filter?.values === null ? filter : null;
    return (
      <RangeFilter
        column={column}
        others={others}
        range={range}
        onChange={(changed) => onChange(changed && { name, ...changed, values: null })}
      />
    );
  }
  const taken = filter?.values ?? [];
  const listed = countValues(column, others).map((count) => ({ ...count, key: filterValue(column, count.value) }));
  return (
    <ValueFilter
      column={column}
      values={listed}
      taken={taken}
      onChange={(values) => onChange(values.length ? { name, values } : null)}
    />
  );
}
