import { Sparkline } from "src/components/Sparkline";
import { rendered } from "src/rendered";
import { expect, test } from "vitest";

test("equal values, also large ones, are drawn at the scale's end", () => {
  for (const value of [0, 0.5, 7, 1e9]) {
    const html = rendered(<Sparkline values={[null, value]} min={value} threshold={value} label="Loss" />);
    expect(html).toContain('y1="22.5"');
    expect(html).not.toContain("NaN");
  }
});
