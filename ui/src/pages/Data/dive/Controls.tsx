import { HStack, NumberInput } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { Choice } from "src/components";
import { type QueryChanges, useQuery } from "src/hooks/useQueryState";
import type { Column } from "src/pages/Data/dive/columns";
import { FeatureSelect } from "src/pages/Data/dive/FeatureSelect";
import { Labelled } from "src/pages/Data/dive/Labelled";
import type { ScaleKind } from "src/pages/Data/dive/scale";
import { DEFAULT_BINS, type Placement } from "src/pages/Data/dive/settings";

/** Placement of the rows, faceted and coloured. */
export function Controls({
  features,
  columns,
  placement,
}: {
  features: readonly Schemas["RowsColumn"][];
  columns: ReadonlyMap<string, Column>;
  placement: Placement;
}) {
  const [, change] = useQuery();
  // What was in sight means nothing where rows are placed otherwise; what was selected stays so.
  const place = (changes: QueryChanges) => change({ ...changes, view: null }, { push: true });
  const isRange = (name: string) => {
    const role = columns.get(name)?.role ?? features.find((feature) => feature.name === name)?.role;
    return role === "number" || role === "time";
  };
  return (
    <HStack
      as="form"
      aria-label="Placement of the rows"
      gap={4}
      rowGap={2}
      wrap="wrap"
      mb={2}
      onSubmit={(event) => event.preventDefault()}
    >
      {(["x", "y"] as const).map((axis) => {
        const name = axis.toUpperCase();
        const value = placement[axis];
        return (
          <Labelled key={axis} label={name}>
            <FeatureSelect
              label={`${name} axis`}
              value={value}
              features={features}
              onChange={(feature) => place({ [axis]: feature })}
            />
            {isRange(value) && (
              <ScaleSelect
                label={`Scale of the ${name} axis`}
                value={placement[`${axis}Scale`]}
                onChange={(scale) => place({ [`${axis}scale`]: scale })}
              />
            )}
          </Labelled>
        );
      })}
      {FACETS.map(({ label, key, bins, axis }) => (
        <Labelled key={key} label={label}>
          <FeatureSelect
            label={`Facet ${key}`}
            value={placement[key]}
            features={features}
            onChange={(feature) => place({ [`facet${axis}`]: feature || null })}
          />
          {placement[key] && (
            <Bins
              label={`Maximum number of facet ${key}`}
              value={placement[bins]}
              onChange={(number) => place({ [`bins${axis}`]: number })}
            />
          )}
        </Labelled>
      ))}
      <Labelled label="Colour">
        <FeatureSelect
          label="Colour"
          value={placement.color}
          features={features}
          onChange={(color) => change({ color }, { push: true })}
        />
      </Labelled>
    </HStack>
  );
}

const FACETS = [
  { label: "Columns", key: "columns", bins: "columnBins", axis: "x" },
  { label: "Rows", key: "rows", bins: "rowBins", axis: "y" },
] as const;
const SCALES = [{ value: "linear" }, { value: "log" }];

function ScaleSelect({
  label,
  value,
  onChange,
}: {
  label: string;
  value: ScaleKind;
  onChange: (scale: string | null) => void;
}) {
  return (
    <Choice
      quiet
      width="92px"
      label={label}
      value={value}
      values={SCALES}
      onChange={(scale) => onChange(scale === "linear" ? null : scale)}
    />
  );
}

function Bins({ label, value, onChange }: { label: string; value: number; onChange: (bins: string | null) => void }) {
  return (
    <NumberInput.Root
      size="xs"
      width="64px"
      min={2}
      max={20}
      value={String(value)}
      onValueChange={({ value: text, valueAsNumber }) => {
        if (valueAsNumber >= 2 && valueAsNumber <= 20) {
          onChange(valueAsNumber === DEFAULT_BINS ? null : text);
        }
      }}
    >
      <NumberInput.Control />
      <NumberInput.Input aria-label={label} title={label} />
    </NumberInput.Root>
  );
}
