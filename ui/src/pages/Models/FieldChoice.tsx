import { Field } from "@chakra-ui/react";
import { Choice } from "src/components/Choice";

interface Props {
  label: string;
  value: string;
  values: readonly { value: string; label: string }[];
  onChange: (value: string) => void;
}

/** What a decision is about, below its name. */
export function FieldChoice(props: Props) {
  return (
    <Field.Root>
      <Field.Label>{props.label}</Field.Label>
      <Choice quiet size="sm" width="full" {...props} />
    </Field.Root>
  );
}
