import { Field, NativeSelect } from "@chakra-ui/react";

/** Which version a decision is about; `about` says more of one. */
export function VersionChoice({
  label,
  version,
  choices,
  about,
  onChoose,
}: {
  label: string;
  version: number;
  choices: readonly number[];
  about: (version: number) => string;
  onChoose: (version: number) => void;
}) {
  return (
    <Field.Root>
      <Field.Label>{label}</Field.Label>
      <NativeSelect.Root size="sm">
        <NativeSelect.Field value={version} onChange={(event) => onChoose(Number(event.currentTarget.value))}>
          {choices.map((each) => (
            <option key={each} value={each}>
              version {each}
              {about(each)}
            </option>
          ))}
        </NativeSelect.Field>
        <NativeSelect.Indicator />
      </NativeSelect.Root>
    </Field.Root>
  );
}
