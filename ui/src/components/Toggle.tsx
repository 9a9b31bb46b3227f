import { Switch } from "@chakra-ui/react";

type Props = Omit<Switch.RootProps, "checked" | "onChange" | "onCheckedChange"> & {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
};

/** A switch with its name. */
export function Toggle({ label, checked, onChange, ...props }: Props) {
  return (
    <Switch.Root size="sm" checked={checked} onCheckedChange={(change) => onChange(change.checked)} {...props}>
      <Switch.HiddenInput />
      <Switch.Control />
      <Switch.Label whiteSpace="nowrap">{label}</Switch.Label>
    </Switch.Root>
  );
}
