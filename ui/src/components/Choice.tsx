import { HStack, NativeSelect, Text } from "@chakra-ui/react";

interface Option {
  value: string;
  label?: string;
  disabled?: boolean;
}

/** One of some values. What it is for stands before it, or with `quiet` is said only to those who hear the page. */
export function Choice({
  label,
  value,
  values,
  onChange,
  size = "xs",
  width = "auto",
  quiet = false,
}: {
  label: string;
  value: string;
  values: readonly Option[];
  onChange: (value: string) => void;
  size?: "xs" | "sm";
  width?: string;
  quiet?: boolean;
}) {
  const select = (
    <NativeSelect.Root size={size} width={width} maxW={quiet ? undefined : "240px"}>
      <NativeSelect.Field
        aria-label={quiet ? label : undefined}
        value={value}
        onChange={(event) => onChange(event.currentTarget.value)}
      >
        {values.map((each) => (
          <option key={each.value} value={each.value} disabled={each.disabled}>
            {each.label ?? each.value}
          </option>
        ))}
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
