/** A style sheet, as the text that it is: the bundler's doing. */
declare module '*.css' {
  const text: string;
  export default text;
}
