import { HStack, NativeSelect, Text } from "@chakra-ui/react";

interface Option {
  value: string;
  label?: string;
  disabled?: boolean;
  /** Options of one group stand below its name. */
  group?: string;
}

interface Props {
  label: string;
  value: string;
  values: readonly Option[];
  onChange: (value: string) => void;
  size?: "xs" | "sm";
  width?: string;
  maxWidth?: string;
  quiet?: boolean;
}

/** One of some values. What it is for stands before it, or with `quiet` is said only to those who hear the page. */
export function Choice({ label, value, values, onChange, size = "xs", width = "auto", maxWidth, quiet }: Props) {
  const groups = [...new Set(values.map(({ group }) => group))];
  const select = (
    <NativeSelect.Root size={size} width={width} maxW={maxWidth ?? (quiet ? undefined : "240px")}>
      <NativeSelect.Field
        aria-label={quiet ? label : undefined}
        title={values.find((each) => each.value === value)?.label ?? value}
        value={value}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        {groups.map((group) => {
          const options = values.filter((each) => each.group === group).map(optionOf);
          return group === undefined ? (
            options
          ) : (
            <optgroup key={group} label={group}>
              {options}
            </optgroup>
          );
        })}
      </NativeSelect.Field>
      <NativeSelect.Indicator />
    </NativeSelect.Root>
  );
  return quiet ? (
    select
  ) : (
    <HStack as="label" gap={2} fontSize="sm">
      <Text color="fg.muted" whiteSpace="nowrap">
        {label}
      </Text>
      {select}
    </HStack>
  );
}

const optionOf = ({ value, label, disabled }: Option) => (
  <option key={value} value={value} disabled={disabled}>
    {label ?? value}
  </option>
);
