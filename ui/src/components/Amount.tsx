import { Slider, type SliderRootProps } from "@chakra-ui/react";

type Props = {
  label: string;
  value: number;
  onChange: (value: number) => void;
} & Pick<SliderRootProps, "min" | "max" | "step" | "width" | "flex" | "size">;

/** A number of a range, on a slider. */
export function Amount({ label, value, onChange, ...rest }: Props) {
  return (
    <Slider.Root
      aria-label={[label]}
      value={[value]}
      onValueChange={({ value: [changed] }) => changed !== undefined && onChange(changed)}
      {...rest}
    >
      <Slider.Control>
        <Slider.Track>
          <Slider.Range />
        </Slider.Track>
        <Slider.Thumbs />
      </Slider.Control>
    </Slider.Root>
  );
}
