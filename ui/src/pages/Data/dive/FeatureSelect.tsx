import { NativeSelect } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";

/** The choice of a feature, or of none. */
export function FeatureSelect({
  label,
  value,
  features,
  none = "none",
  width = "150px",
  onChange,
}: {
  label: string;
  value: string;
  features: readonly Schemas["ColumnType"][];
  none?: string;
  width?: string;
  onChange: (name: string) => void;
}) {
  const numbers = features.filter(({ role }) => role === "number" || role === "time");
  const others = features.filter(({ role }) => role === "category" || role === "boolean");
  return (
    <NativeSelect.Root size="xs" width={width}>
      <NativeSelect.Field
        aria-label={label}
        title={value}
        value={value}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        <option value="">{none}</option>
        {value !== "" && !features.some(({ name }) => name === value) && <option value={value}>{value}</option>}
        <Group label="Numbers" features={numbers} />
        <Group label="Categories" features={others} />
      </NativeSelect.Field>
      <NativeSelect.Indicator />
    </NativeSelect.Root>
  );
}

function Group({ label, features }: { label: string; features: readonly Schemas["ColumnType"][] }) {
  return features.length === 0 ? null : (
    <optgroup label={label}>
      {features.map(({ name }) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </optgroup>
  );
}
