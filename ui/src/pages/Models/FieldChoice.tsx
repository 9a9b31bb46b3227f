import { Field } from "@chakra-ui/react";
import { Choice } from "src/components";

interface Props {
  label: string;
  value: string;
  values: readonly { value: string; label: string }[];
  onChange: (value: string) => void;
}

/** The values with an empty one before them until one is chosen: none is chosen by itself. */
export const withNone = (values: Props["values"], chosen: boolean): Props["values"] =>
  chosen ? values : [{ value: "", label: "choose" }, ...values];

/** What a decision is about, below its name. */
export function FieldChoice(props: Props) {
  return (
    <Field.Root>
      <Field.Label>{props.label}</Field.Label>
      <Choice quiet size="sm" width="full" {...props} />
    </Field.Root>
  );
}
