import { Button, CloseButton, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { ticked, useQuery } from "src/hooks/useQueryState";
import type { Column } from "src/pages/Data/dive/columns";
import { FeatureSelect } from "src/pages/Data/dive/FeatureSelect";
import {
  byValues,
  countValues,
  type Filter,
  filterValue,
  openedIn,
  passing,
  withFilter,
} from "src/pages/Data/dive/filters";
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
  const names = [...filters.map(({ name }) => name), ...openedIn(query)];
  const close = (name: string) =>
    change((address) => {
      const { filter, open } = withFilter(address, name, () => null);
      return { filter, open: ticked(open, name, false) };
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
                onChange={(to) => change((address) => withFilter(address, name, to))}
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
        onChange={(name) => name && change((address) => ({ open: [...openedIn(address), name] }))}
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
  /** Gets how the filter changes from what it is by then. */
  onChange: (to: (filter: Filter | null) => Filter | null) => void;
}) {
  const { name } = column;
  if (!byValues(column)) {
    const range = filter?.values === null ? filter : null;
    return (
      <RangeFilter
        column={column}
        others={others}
        range={range}
        onChange={(changed) => onChange(() => changed && { name, ...changed, values: null })}
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
      onTick={(value, checked) =>
        onChange((before) => {
          const values = ticked(before?.values ?? [], value, checked);
          return values.length ? { name, values } : null;
        })
      }
    />
  );
}
