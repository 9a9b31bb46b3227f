import { Field } from "@chakra-ui/react";
import { Choice } from "src/components/Choice";

interface Props {
  label: string;
  version: number;
  choices: readonly number[];
  about: (version: number) => string;
  onChoose: (version: number) => void;
}

/** Which version a decision is about; `about` says more of one. */
export function VersionChoice({ label, version, choices, about, onChoose }: Props) {
  return (
    <Field.Root>
      <Field.Label>{label}</Field.Label>
      <Choice
        quiet
        size="sm"
        width="full"
        label={label}
        value={String(version)}
        values={choices.map((each) => ({ value: String(each), label: `version ${each}${about(each)}` }))}
        onChange={(value) => onChoose(Number(value))}
      />
    </Field.Root>
  );
}
